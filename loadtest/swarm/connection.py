"""The socket of a simulated client: one TCP connection, driven by gevent's loop, without its own greenlet.

Owns the socket, its unsent bytes, and its watcher. Events are reported by three callbacks, from the loop: they must not
block. No callback follows `closed`. Rules:
- `finish` ends a connection that has sent DISCONNECT: it closes the sending half and reads until the broker closes.
  A socket closed with unread data would send RST, upon which a broker may publish the will.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import gevent
from gevent import monkey

original_socket: Any = monkey.get_original("socket", "socket")  # each of gevent's costs as much memory as a hub
READ, WRITE = 1, 2
READ_SIZE = 1 << 16  # bytes
IP_BIND_ADDRESS_NO_PORT = 24  # the kernel chooses the port in connect(): each target has the whole range
RESET = struct.pack("ii", 1, 0)
Address = tuple[str, int]


class Connection:
    """One connection; connecting begins at once.

    Args:
        address: of the broker, numeric.
        source: local address; "" = the system chooses.
        opened: called when the connection is established.
        received: called with received bytes.
        closed: called once with the reason when the connection ends, except after `finish` or `abort`.
    """

    __slots__ = ("_closed", "_finishing", "_open", "_opened", "_received", "_socket", "_to_send", "_watcher")

    def __init__(
        self,
        address: Address,
        source: str,
        opened: Callable[[], None],
        received: Callable[[bytes], None],
        closed: Callable[[str], None],
    ) -> None:
        self._opened = opened
        self._received = received
        self._closed = closed
        self._open = False
        self._finishing = False
        self._to_send = b""
        self._socket = original_socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watcher = gevent.get_hub().loop.io(self._socket.fileno(), READ | WRITE)
        try:
            if source:
                self._socket.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                self._socket.bind((source, 0))
            error = self._socket.connect_ex(address)
        except OSError as refused:
            error = refused.errno or errno.EIO
        if error not in (0, errno.EINPROGRESS):
            gevent.get_hub().loop.run_callback(
                self._end, os.strerror(error).lower()
            )  # like every callback, from the loop
        else:
            self._watcher.start(self._ready_to_connect)

    @property
    def ended(self) -> bool:
        """Whether the socket is closed."""
        return int(self._socket.fileno()) < 0

    def send(self, data: bytes) -> None:
        """Send now, or when the socket is writable."""
        if self._to_send or not data or self.ended:
            self._to_send += data  # in order; ignored if the connection has ended
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the loop reports it
        if sent < len(data):
            self._to_send = data[sent:]
            self._watch(READ | WRITE)

    def finish(self) -> None:
        """Close it after all bytes are sent."""
        self._finishing = True
        if not self._open:
            self.abort()
        elif not self._to_send and not self.ended:
            self._shut()

    def abort(self) -> None:
        """Close it at once, with RST."""
        if not self.ended:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._release()

    def _ready_to_connect(self) -> None:
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._end(os.strerror(error).lower())
            return
        self._open = True
        self._watch(READ)
        self._opened()

    def _ready(self) -> None:
        if self._to_send:
            self._flush()
        if self.ended:
            return
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(os.strerror(error.errno or errno.EIO).lower())
            return
        if not data:
            self._end("closed by the broker")
        elif not self._finishing:
            self._received(data)

    def _flush(self) -> None:
        data, self._to_send = self._to_send, b""
        self.send(data)
        if not self._to_send:
            self._watch(READ)
            if self._finishing:
                self._shut()

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._release()

    def _watch(self, events: int) -> None:
        self._watcher.stop()
        self._watcher.events = events
        self._watcher.start(self._ready)

    def _end(self, reason: str) -> None:
        if not self.ended:
            self._release()
            if not self._finishing:
                self._closed(reason)

    def _release(self) -> None:
        self._watcher.stop()
        self._watcher.close()
        self._socket.close()
