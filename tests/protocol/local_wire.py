"""A Wire to a node within the test's own process: no network, no waiting, the same packets."""

import contextlib
import socket
from collections import deque

from tests.harness.inprocess import Node
from tests.protocol.packet_lines import parse_packet
from tests.protocol.wire import Wire


class LocalWire(Wire):
    """A connection to a node of `tests.harness.inprocess`, which works while the client sends or waits.

    Args:
        node: the node to connect to.
        level: as for Wire.
        name: as for Wire.
        split: as for Wire; the node takes each byte by itself.
    """

    def __init__(self, node: Node, level: int = 4, name: str = "c", *, split: bool = False) -> None:
        self.port = 0  # of no cluster
        self.level = level
        self.name = name
        self.split = split
        self.frames: deque[bytes] = deque()
        self.closed = False
        self._node = node
        self._rest = bytearray()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(node.address)
        self._socket.setblocking(False)
        node.run()

    def send(self, *what: str | bytes) -> None:
        data = b"".join(item if isinstance(item, bytes) else parse_packet(item, self.level, self.name) for item in what)
        size = 1 if self.split else len(data)
        with contextlib.suppress(ConnectionError):
            for i in range(0, len(data), size):
                assert self._socket.send(data[i : i + size]) == min(size, len(data) - i)
                self._node.run()

    def drop(self) -> None:
        self._socket.close()
        self._node.run()

    def reset(self) -> None:
        raise NotImplementedError("a Unix socket has no RST")

    def _read(self, end: float) -> None:
        self._node.run()
        assert self._take(), f"{self.name}: nothing came"

    def _take(self) -> bool:
        """Take all that the node has sent; False: there was nothing."""
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        self._cut(data)
        return True

    def settle(self) -> None:
        self._node.run()
        while not self.closed and self._take():
            self._node.run()
