"""Every exception FlockMQ raises for a fault on its own side of the wire.

    FlockError                caught by every command: a message, and a hint how to go on
    ├── UsageError            the command line is wrong (exit status 2)
    ├── ConfigError           a key, a value or the file of the configuration is wrong (exit status 2)
    ├── ListenError           a listener cannot be opened
    ├── StoreError            the store cannot be opened or read
    ├── StoreFailure          the store has failed while the node was running: a restart may help (exit status 1)
    ├── NotNow                a service needed to start is not available yet: wait, and try again
    └── ClientError           `flockmq pub` or `flockmq sub` failed
        ├── ConnectError        no network connection to the broker: name, route, refused, time
        ├── ConnectRefusedError CONNACK had a return code other than 0
        └── ConnectionLostError the connection ended before the work was done

Faults of a peer are elsewhere: `flockmq._speedups.codec.errors` has `MalformedPacket` and `ProtocolError`. Such a fault
ends one connection, never a command or a node.
"""

import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches


class FlockError(Exception):
    """A fault, printed in one line; `hint` is the remedy, if there is one."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(FlockError):
    """The command line is wrong."""


class ConfigError(FlockError):
    """A key, a value or the file of the configuration is wrong."""


class ListenError(FlockError):
    """A listener cannot be opened."""


class StoreError(FlockError):
    """The store cannot be opened or read."""


class StoreFailure(FlockError):
    """The store has failed while the node was running: it stores and confirms nothing more."""


class NotNow(FlockError):
    """A service needed to start is not available yet: wait, and try again."""


class ClientError(FlockError):
    """A client command failed."""


class ConnectError(ClientError):
    """No network connection to the broker could be made."""


class ConnectRefusedError(ClientError):
    """The broker refused the CONNECT packet; `return_code` is from CONNACK, at level 5 its reason code."""

    def __init__(self, message: str, hint: str = "", *, return_code: int) -> None:
        super().__init__(message, hint)
        self.return_code = return_code


class ConnectionLostError(ClientError):
    """The connection ended before the work was done; `reason_code` is from the broker's DISCONNECT, or 0."""

    def __init__(self, message: str, hint: str = "", *, reason_code: int = 0) -> None:
        super().__init__(message, hint)
        self.reason_code = reason_code


def fail(error: FlockError, status: int) -> int:
    """Print an error on one line of standard error; returns the exit status."""
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(error))
    print(f"flockmq: error: {line}", file=sys.stderr)
    return status


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, for a hint; empty: there is none."""
    return next(iter(get_close_matches(name, list(known), 1, 0.7)), "")


def reason_of(error: Exception) -> str:
    """An exception in words: one of the system without its number, and the address that uvloop adds."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error) or type(error).__name__
