"""A connection of the simulated Redis, at its side: input, commands in order, output."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import hiredis

from tests.simulation.network import Connection, Direction
from tests.simulation.redis_types import Reply

INCOMPLETE = object()


class Watcher(Protocol):
    """Learns what a Redis does for the cluster of one prefix."""

    def claimed(self, node: bytes, client_id: bytes) -> object:
        """The reply to a claim of a node has arrived."""

    def calling(self, function: bytes, arguments: list[bytes]) -> object:
        """Redis is to execute a call of a function."""

    def called(self, function: bytes, reply: Reply) -> object:
        """Redis has executed a call of a function."""

    def lost(self, since: int, keys: dict[bytes, Any]) -> object:
        """Redis has died, and lost all from this nanosecond on; it has the keys of then, of all clusters."""


class Server(Protocol):
    """The Redis at which a connection is."""

    clients: dict[int, "Client"]  # by number
    watchers: dict[bytes, Watcher]  # by the prefix of their cluster

    def received(self, client: "Client", data: bytes) -> None:
        """A client has sent bytes."""

    def ended(self, client: "Client", *, reset: bool) -> None:
        """A client has closed its connection."""

    def execute(self, client: "Client", command: list[bytes]) -> None:
        """Execute a command, and write its reply."""


class Client:
    """One connection, at the side of Redis."""

    def __init__(self, server: Server, number: int, connection: Connection) -> None:
        self.number = number
        self.name = b""
        self.version = 2  # of RESP
        self.channels: dict[bytes, None] = {}
        self.skips = False  # the reply to the next command: CLIENT REPLY SKIP
        self.waits = False  # WAIT: no command is executed before its reply
        self.output = bytearray()
        # Prefix, node and client of the claims whose replies are in the output.
        self.claims: list[tuple[bytes, bytes, bytes]] = []
        self._server = server
        self._reader = hiredis.Reader(notEnoughData=INCOMPLETE)
        self.direction: Direction = connection.to_a
        connection.to_b.end = self
        self.input: Direction = connection.to_b

    def receive(self, data: bytes) -> None:
        self._server.received(self, data)

    def ended(self, *, reset: bool) -> None:
        self._server.ended(self, reset=reset)

    def feed(self, data: bytes) -> None:
        """Execute the commands of these bytes."""
        self._reader.feed(data)
        self.go_on()

    def go_on(self) -> None:
        """Execute the commands that have arrived."""
        while not self.waits and self.number in self._server.clients:
            if (command := self._reader.gets()) is INCOMPLETE:
                return
            self._server.execute(self, command)

    def flush(self) -> None:
        """Send what has been written."""
        if self.output:
            self.direction.send(bytes(self.output))
            self.output.clear()
            for prefix, *claim in self.claims:
                self.direction.when_arrived(partial(self._server.watchers[prefix].claimed, *claim))
            self.claims.clear()

    def leave(self) -> None:
        """End the connection with the last written bytes."""
        self.input.discard()
        self.direction.finish()

    def close(self) -> None:
        """End the connection from this side."""
        self.input.discard()
        self.direction.send(True)


@dataclass
class LastCommand:
    """The command with which a connection ends: the n-th with a word, or the n-th of all.

    Attributes:
        name: of the connection begins so.
        word: name of the command, or an argument; empty: any command.
        number: from 1; it is counted down.
        executes: whether it is executed.
        replies: whether its reply arrives, in one piece with the end; if not, the connection is reset.
        ends: whether the connection ends with it at all.
        then: called when it is executed, and the connection has ended.
    """

    name: bytes
    word: bytes
    number: int
    executes: bool = True
    replies: bool = True
    ends: bool = True
    then: Callable[[], object] = bool

    def is_reached(self, name: bytes, command: list[bytes]) -> bool:
        """Count a command of a connection with this name. Returns whether it is the last one."""
        if name.startswith(self.name) and (not self.word or self.word in command):
            self.number -= 1
            return not self.number
        return False
