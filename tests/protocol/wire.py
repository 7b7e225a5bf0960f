"""One client's end of a connection, at the level of packets: for tests of the bytes on the wire.

Packets are written as lines ("publish a/b hello q1 id=5", see packet_lines.py) or are bytes. The bytes that come are
cut into frames and compared as bytes, so that a flag or a length that is wrong shows.
"""

import contextlib
import shlex
import socket
import struct
import time
from collections import deque
from typing import Any

from flockmq._speedups.codec.decode import decode
from tests.harness.broker_process import SETTLERS, settle, take_turns
from tests.harness.deadline import DEADLINE
from tests.protocol.packet_lines import Awaited, parse_packet, shown

PUBACK = 4
ANSWERS = (0x40, 0x70, 0x90, 0xB0)  # PUBACK, PUBCOMP, SUBACK, UNSUBACK
MAY_OVERTAKE = (3, 13)  # PUBLISH and PINGRESP
BARRIER = 65535  # packet identifier of an UNSUBSCRIBE that means nothing but "are you through?"


def frame_size(data: bytes | bytearray) -> int:
    """Bytes of the first frame in `data`; 0 when its header is incomplete."""
    remaining = 0
    for i in range(1, min(len(data), 5)):
        remaining |= (data[i] & 0x7F) << 7 * (i - 1)
        if data[i] < 0x80:
            return 1 + i + remaining
    return 0


class Wire:
    """A connection to a node.

    Args:
        port: of the node.
        level: protocol level, of written lines and of shown packets.
        name: client id of CONNECT lines without one.
        split: send each byte by itself.
        receive_buffer: SO_RCVBUF, for a client that is to be slow.
    """

    def __init__(
        self, port: int, level: int = 4, name: str = "c", *, split: bool = False, receive_buffer: int = 0
    ) -> None:
        self.port = port
        self.level = level
        self.name = name
        self.split = split
        self.frames: deque[bytes] = deque()
        self.closed = False
        self._rest = bytearray()
        self._socket = socket.socket()
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(DEADLINE)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    @property
    def address(self) -> str:
        """Our end, as the node logs it."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    # ---- sending ----

    def send(self, *what: str | bytes) -> None:
        """Send packets, in one write unless `split`. In a cluster, earlier packets of others come before them."""
        take_turns(self.port, self)
        data = b"".join(item if isinstance(item, bytes) else parse_packet(item, self.level, self.name) for item in what)
        with contextlib.suppress(ConnectionError):  # the node closed first: its last packets show that
            if not self.split:
                self._socket.sendall(data)
            else:
                for i in range(len(data)):
                    self._socket.sendall(data[i : i + 1])

    def drop(self) -> None:
        """Close without a word: FIN."""
        self._socket.close()

    def reset(self) -> None:
        """Close with RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    # ---- receiving ----

    def receive(self, deadline: float = DEADLINE) -> bytes | None:
        """The next frame; None when the node has closed the connection."""
        end = time.monotonic() + deadline
        while not self.frames:
            if self.closed:
                return None
            self._read(end)
        return self.frames.popleft()

    def _read(self, end: float) -> None:
        """Take what comes next.

        Raises:
            AssertionError: nothing comes until `end`.
        """
        left = end - time.monotonic()
        if left <= 0:
            raise AssertionError(f"{self.name}: nothing came in time")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(1 << 18)
        except TimeoutError:
            raise AssertionError(f"{self.name}: nothing came in time") from None
        except ConnectionError:
            data = b""
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(DEADLINE)
        self._cut(data)

    def _cut(self, data: bytes) -> None:
        """Cut what came into frames; no bytes: the end of the connection."""
        if not data:
            assert not self._rest, f"{self.name}: closed within a frame"
            self.closed = True
            return
        self._rest += data
        start = 0
        view = self._rest
        while True:
            size = frame_size(view[start : start + 5])
            if not size or start + size > len(view):
                break
            self.frames.append(bytes(view[start : start + size]))
            start += size
        del self._rest[:start]

    def expect(self, *what: str | bytes | None) -> None:
        """The next frames must be these; None: the node closes. Lines as in packet_lines.py."""
        for item in what:
            if item is None:
                wanted = "closed"
                found = self._received(wanted)
                right = found is None
            else:
                awaited = Awaited(item, self.level, self.name)
                wanted = shown(awaited.data, self.level) + (f" and {awaited.contained}" if awaited.contained else "")
                found = self._received(wanted, awaited)
                right = awaited.matches(found) or self._knows_no_better(awaited, found)
            assert right, f"{self.name}: came {shown(found, self.level)}, awaited {wanted}"

    def _knows_no_better(self, awaited: Awaited, found: bytes | None) -> bool:
        """Whether a node of a cluster gives 0x00 in place of 0x10, No matching subscribers [MQTT 5, 3.4.2.1].

        Routes of sessions that have gone from other nodes linger.
        """
        data = awaited.data
        is_none = data[0] >> 4 == PUBACK and data[4:] == b"\x10" and self.port in SETTLERS
        return is_none and found == bytes([data[0], 2]) + data[2:4]

    def _received(self, wanted: str, awaited: Awaited | None = None) -> bytes | None:
        try:
            return self.receive() if awaited is None else self._answer(awaited)
        except AssertionError as error:
            raise AssertionError(f"{error}; awaited {wanted}") from None

    def _answer(self, awaited: Awaited) -> bytes | None:
        """The next frame. In a cluster some answers wait for Redis or other nodes, and other packets may come first.

        SUBACK: [3.8.4]. PUBACK and PUBCOMP: messages of one direction are in no order with answers of the other.
        """
        if awaited.data[0] not in ANSWERS or self.port not in SETTLERS:
            return self.receive()
        before = []
        while (frame := self.receive()) is not None and frame[0] >> 4 in MAY_OVERTAKE and not awaited.matches(frame):
            before.append(frame)
        self.frames.extendleft(reversed(before))
        return frame

    def expect_end(self, code: int | None = None) -> None:
        """The node closes; at level 5 it gives this reason code in DISCONNECT before, unless it is None."""
        if code is not None and self.level == 5:
            self.expect(f"disconnect {code} reason~")
        self.expect(None)

    def packet(self) -> Any:
        """The next packet, decoded; None when the node has closed."""
        found = self.receive()
        return None if found is None else decode(found, self.level)

    def settle(self) -> None:
        """Wait until the node has acted on all that was sent, and has stored it; packets that come are kept.

        In a cluster, until all nodes have.
        """
        self._settle()
        if settle(self.port):
            self._settle()

    def _settle(self) -> None:
        self.send(f"unsubscribe {BARRIER} nothing/there")
        answer = parse_packet(f"unsuback {BARRIER} 0x11", self.level)
        end = time.monotonic() + DEADLINE
        while answer not in self.frames:
            assert not self.closed, f"{self.name}: closed"
            self._read(end)
        self.frames.remove(answer)

    def expect_nothing(self) -> None:
        """Nothing may be under way: whatever the node had for us before this call would have come."""
        self.settle()
        assert not self.frames, f"{self.name}: came {shown(self.frames[0], self.level)}, awaited nothing"

    # ---- habits ----

    def connect(self, line: str = "", answer: str = "connack") -> "Wire":
        """CONNECT and its answer."""
        self.send(f"connect {line}")
        self.expect(answer)
        return self

    def subscribe(self, *filters: str, packet_id: int = 1) -> "Wire":
        """SUBSCRIBE to FILTER:QOS ... and its answer."""
        self.send(f"subscribe {packet_id} {shlex.join(filters)}")
        self.expect(f"suback {packet_id} {' '.join(name.rpartition(':')[2].partition(',')[0] for name in filters)}")
        return self

    def close(self) -> None:
        """DISCONNECT; returns when the node has closed."""
        self.send("disconnect")
        while self.receive() is not None:
            pass
        self.drop()
