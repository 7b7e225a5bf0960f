"""One client's end of a connection, at the level of packets: for tests that say what stands on the wire.

Packets are written as lines ("publish a/b hello q1 id=5", see `parse_packet`) or are bytes. What comes is cut into
frames and compared as bytes, so that a flag or a length that is wrong shows.
"""

import contextlib
import shlex
import socket
import struct
import time
from collections import deque
from typing import Any

from _speedups.codec import packets
from _speedups.codec.decode import decode
from _speedups.codec.encode import encode
from _speedups.codec.packets import Packet
from tests.harness.broker_process import SETTLERS, settle, take_turns
from tests.harness.deadline import DEADLINE

ANSWERS = (0x40, 0x70, 0x90, 0xB0)  # PUBACK, PUBCOMP, SUBACK, UNSUBACK
MAY_OVERTAKE = (3, 13)  # PUBLISH and PINGRESP
BARRIER = 65535  # packet identifier of an UNSUBSCRIBE that means nothing but "are you through?"


def parse_packet(line: str, level: int, client_id: str = "c") -> bytes:
    """The bytes of a packet written as a line.

    connect [id=ID] [clean=0] [keep=N] [user=U] [pass=P] [will=TOPIC [message=M] [q1] [retain]] [level=N]
    connack [present] [N]              publish TOPIC [PAYLOAD] [q1 id=N] [dup] [retain]
    puback|pubrec|pubrel|pubcomp N     subscribe N FILTER:QOS ...      suback N CODE ...
    unsubscribe N FILTER ...           unsuback N                      pingreq|pingresp|disconnect
    hex 10 0c 00 ...                   text beside bytes: hex 30 06 0003 =a/b
    """
    name, *words = shlex.split(line)
    if name == "hex":
        return b"".join(word[1:].encode() if word[0] == "=" else bytes.fromhex(word) for word in words)
    flags = {"clean", "present", "dup", "retain", "q0", "q1", "q2"}
    keys = {"id", "clean", "keep", "user", "pass", "will", "message", "level"}
    named: dict[str, str] = {}
    plain: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in keys:
            named[key] = value
        elif name in ("connect", "connack", "publish") and word in flags:
            named[word] = "1"
        else:
            plain.append(word)
    qos = next((n for n in (1, 2) if f"q{n}" in named), 0)
    packet: Packet
    if name == "connect":
        level = int(named.get("level", level))
        password = named.get("pass")
        packet = packets.Connect(
            named.get("id", client_id),
            clean_start=named.get("clean", "1") == "1",
            keep_alive=int(named.get("keep", "0")),
            username=named.get("user"),
            password=None if password is None else password.encode(),
            will_topic=named.get("will"),
            will_payload=named.get("message", "").encode(),
            will_qos=qos,
            will_retain="retain" in named,
            protocol_level=level,
        )
    elif name == "connack":
        packet = packets.Connack("present" in named and level > 3, int(plain[0]) if plain else 0)
    elif name == "publish":
        topic_name, payload = (*plain, "")[:2]
        packet = packets.Publish(
            topic_name, payload.encode(), qos, "retain" in named, "dup" in named, int(named.get("id", "0"))
        )
    elif name == "subscribe":
        pairs = [word.rpartition(":") for word in plain[1:]]
        packet = packets.Subscribe(int(plain[0]), [(topic_filter, int(q)) for topic_filter, _, q in pairs])
    elif name == "unsubscribe":
        packet = packets.Unsubscribe(int(plain[0]), plain[1:])
    elif name == "suback":
        packet = packets.Suback(int(plain[0]), [int(code, 0) for code in plain[1:]])
    elif name in ("pingreq", "pingresp", "disconnect"):
        assert not plain, line
        packet = getattr(packets, name.capitalize())()
    else:
        (number,) = plain
        packet = getattr(packets, name.capitalize())(int(number))
    return encode(packet, level)


def frame_size(data: bytes | bytearray) -> int:
    """Bytes of the first frame in `data`; 0 when its header is incomplete."""
    remaining = 0
    for i in range(1, min(len(data), 5)):
        remaining |= (data[i] & 0x7F) << 7 * (i - 1)
        if data[i] < 0x80:
            return 1 + i + remaining
    return 0


def shown(frame: bytes | None, level: int) -> str:
    """A frame as a person reads it."""
    if frame is None:
        return "closed"
    with contextlib.suppress(ValueError):
        text = repr(decode(frame, level))
        return text if len(text) < 300 else text[:300] + "..."
    return frame[:100].hex(" ")


class Wire:
    """A connection to a node.

    Args:
        port: of the node.
        level: protocol level, for what is written as lines and for what is shown.
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
        """Send packets, in one write unless `split`. In a cluster, what others have sent before comes before it."""
        take_turns(self.port, self)
        data = b"".join(item if isinstance(item, bytes) else parse_packet(item, self.level, self.name) for item in what)
        with contextlib.suppress(ConnectionError):  # the node closed first: what it sent before shows that
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
        """The next frames must be these bytes; None: the node closes."""
        for item in what:
            wanted = parse_packet(item, self.level, self.name) if isinstance(item, str) else item
            try:
                found = self._answer(wanted) if wanted else self.receive()
            except AssertionError as error:
                raise AssertionError(f"{error}; awaited {shown(wanted, self.level)}") from None
            assert found == wanted, f"{self.name}: came {shown(found, self.level)}, awaited {shown(wanted, self.level)}"

    def _answer(self, wanted: bytes) -> bytes | None:
        """The next frame. In a cluster some answers wait for Redis or other nodes, and what does not may come first.

        SUBACK: [3.8.4]. PUBACK and PUBCOMP: messages of the one direction are in no order with answers of the other.
        """
        if wanted[0] not in ANSWERS or self.port not in SETTLERS:
            return self.receive()
        before = []
        while (frame := self.receive()) is not None and frame[0] >> 4 in MAY_OVERTAKE and frame != wanted:
            before.append(frame)
        self.frames.extendleft(reversed(before))
        return frame

    def packet(self) -> Any:
        """The next packet, decoded; None when the node has closed."""
        found = self.receive()
        return None if found is None else decode(found, self.level)

    def settle(self) -> None:
        """Wait until the node has acted on all that was sent, and has stored it; what comes meanwhile is kept.

        In a cluster, until all nodes have.
        """
        self._settle()
        if settle(self.port):
            self._settle()

    def _settle(self) -> None:
        self.send(f"unsubscribe {BARRIER} nothing/there")
        answer = parse_packet(f"unsuback {BARRIER}", self.level)
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
        self.expect(f"suback {packet_id} {' '.join(name.rpartition(':')[2] for name in filters)}")
        return self

    def close(self) -> None:
        """DISCONNECT; returns when the node has closed."""
        self.send("disconnect")
        while self.receive() is not None:
            pass
        self.drop()
