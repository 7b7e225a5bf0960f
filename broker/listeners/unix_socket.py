"""Unix sockets to listen on: a file with its own permissions, which exists as long as its process."""

import os
import socket
import stat

from ..errors import ListenError


def bind_unix(path: str, mode: int) -> socket.socket:
    """A listening socket at this path; the file of a dead process is replaced.

    Args:
        path: of the file.
        mode: its permissions.

    Raises:
        ListenError: with the remedy.
    """
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(path)
        os.chmod(path, mode)  # no client can connect before it listens
        listener.listen(1)  # from here on other processes see that it is taken
    except OSError as error:
        listener.close()
        raise ListenError(
            f"can't listen on unix:{path}: {error.strerror}", "its directory must be there, and be writable"
        ) from error
    return listener


def inherit(number: int) -> socket.socket:
    """A Unix socket that another process has bound and handed down. Raises ListenError."""
    try:
        listener = socket.socket(fileno=number)
    except OSError as error:
        raise ListenError(f"can't listen on fd:{number}: {error.strerror}") from error
    if listener.family != socket.AF_UNIX:  # exposure is judged by the address, and this has none
        raise ListenError(f"can't listen on fd:{number}: it is no Unix socket", "write network addresses as HOST:PORT")
    listener.setblocking(False)
    return listener


def _make_room(path: str) -> None:
    """Remove the socket of a dead process; nothing else."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"can't listen on unix:{path}: there is a file that is no socket", "choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:  # its queue is full, or this process may not connect
            reason = error.strerror
        else:
            reason = "it accepts connections"
    raise ListenError(
        f"can't listen on unix:{path}: another process does ({reason})", "stop it, or choose another path"
    )


def remove(path: str, listener: socket.socket) -> None:
    """At the end: remove the socket's file, if it still is the socket's; then close it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            listener.close()
            probe.connect(path)  # another process has the path by now
    except ConnectionRefusedError:
        os.unlink(path)
    except OSError:
        return
