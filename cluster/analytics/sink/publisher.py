"""Publishes to an MQTT broker, in plain Python: executors get no compiled modules.

Every message of QoS 1 and 2 is acknowledged in the end, at least once: after a lost connection all that are not are
sent again, in their order. The client is new then for the broker (Clean Start, no session).
"""

import contextlib
import socket
import ssl
import time
import uuid
from collections import deque
from collections.abc import Iterable
from itertools import islice
from types import TracebackType

from ..errors import BrokerError
from .options import SinkOptions
from .packets import Packet, encoded_length, encoded_text

AT_ONCE = 500  # packets in a write
RECEIVED_AT_ONCE = 1 << 18  # bytes
ANY_SIZE = 1 << 28  # bytes: no packet has so many
REPLY_SECONDS = 20.0  # in which the broker accepts a connection
PAUSES = (0.1, 0.2, 0.5, 1.0)  # seconds between attempts; the last again and again
IDS = [n.to_bytes(2, "big") for n in range(65536)]
PUBACK, PUBREC, PUBCOMP, PINGRESP, DISCONNECT = 0x40, 0x50, 0x70, 0xD0, 0xE0
TRANSACTIONS = "flockmq-transactions"  # user property of CONNECT and CONNACK: the broker has transactions
PUBREL, PINGREQ, END = b"\x62\x02", b"\xc0\0", b"\xe0\0"
QUOTA = 0x97
TOO_MUCH = (
    "a batch waits at the broker until it is complete: raise limits.max_delayed_bytes and limits.max_delayed_messages "
    'there, read less at once (maxBytesPerTrigger of the source), or set .option("delivery", "at-least-once")'
)
REFUSED = 0x80  # reason codes from here on
# Reasons of CONNACK after which another attempt may succeed: unavailable, busy, use another server, quota, rate.
LATER = {4: {3}, 5: {0x88, 0x89, 0x97, 0x9C, 0x9F}}
REASONS = {
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: 'unsupported protocol version: try .option("protocol", "3.1.1")',
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x90: "topic name invalid",
    0x93: "receive maximum exceeded",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
    0x9A: "retain not supported",
    0x9B: "QoS not supported",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9F: "connection rate exceeded",
}
RETURN_CODES = {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}  # of 3.1.1


class Publisher:
    """A connection to the broker; `with` ends it.

    Args:
        options: of the sink.

    Raises:
        BrokerError: the broker can't be reached within `patience`, or has refused the connection.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._client_id = f"{options.client_id}-{uuid.uuid4().hex[:12]}"
        self._socket: socket.socket | None = None
        self._input = bytearray()
        self._queue: deque[Packet] = deque()  # not sent
        self._pending: dict[int, Packet] = {}  # by packet identifier, in the order in which they were sent
        self._last_id = 0
        self._pinged = False
        self._window = 1
        self._most_qos, self._retains, self._largest = 2, True, ANY_SIZE
        self._is_limited = False  # the broker does not take every message
        self.has_transactions = False
        self._progress_at = 0.0  # monotonic: of the last acknowledgement, or of the first message that waits for one
        self._connect()

    def publish(self, packets: Iterable[Packet]) -> int:
        """Publish messages. Returns their number; some may not be acknowledged yet.

        Raises:
            BrokerError: the broker has refused a message, or is away for longer than `patience`.
        """
        count = 0
        source = iter(packets)
        while some := list(islice(source, AT_ONCE)):
            count += len(some)
            self._queue.extend(some)
            self._persist(leave=self._window)
        return count

    def finish(self) -> None:
        """Wait until the broker has acknowledged all messages, and received all of QoS 0. Raises as `publish`."""
        self._persist(leave=0)
        self._pinged = True
        self._write(PINGREQ)
        while self._pinged:
            try:
                self._read()
            except OSError as error:
                self._reconnect(error)
                self._persist(leave=0)
                break  # what was lost was of QoS 0

    @property
    def largest(self) -> int:
        """Bytes of the largest packet that the broker takes."""
        return self._largest

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(END)
            self._socket.close()

    # ---- sending ----

    def _persist(self, leave: int) -> None:
        """Send all, over other connections if need be, until at most `leave` messages are not acknowledged."""
        while self._queue or len(self._pending) > leave:
            try:
                self._send()
                if len(self._pending) > leave or self._queue:
                    self._read()
            except OSError as error:
                self._reconnect(error)

    def _send(self) -> None:
        """Send as many messages as the window has room for."""
        queue, pending, parts = self._queue, self._pending, []
        number, room = self._last_id, self._window - len(pending)
        if not pending:
            self._progress_at = time.monotonic()
        while queue and room > 0:
            packet = queue.popleft()
            if self._is_limited:
                self._check(packet)
            parts.append(packet.head)
            if packet.qos:
                room -= 1
                number = number % 65535 + 1
                while number in pending:
                    number = number % 65535 + 1
                pending[number] = packet
                parts.append(IDS[number])
            parts.append(packet.rest)
        self._last_id = number
        if parts:
            self._write(b"".join(parts))

    def _check(self, packet: Packet) -> None:
        """Whether the broker has announced that it takes the message."""
        if packet.qos > self._most_qos:
            raise BrokerError(f"{self._options.broker} takes QoS {self._most_qos} at most", "set the option qos")
        if packet.head[0] & 1 and not self._retains:
            raise BrokerError(f"{self._options.broker} has no retained messages", "leave retain out")
        if len(packet.head) + len(packet.rest) + 2 > self._largest:
            raise BrokerError(f"a message to {_topic_of(packet)} is too large: {self._largest} bytes at most")

    def _write(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    # ---- receiving ----

    def _read(self) -> None:
        """Wait for packets of the broker, and process them. Raises OSError: the connection has ended."""
        assert self._socket is not None
        data = self._socket.recv(RECEIVED_AT_ONCE)
        if not data:
            raise ConnectionResetError("the broker has closed the connection")
        buffer = self._input
        buffer += data
        at, size, before, pending = 0, len(buffer), len(self._pending), self._pending
        while size - at >= 4 and buffer[at] == PUBACK and buffer[at + 1] == 2:
            pending.pop(buffer[at + 2] << 8 | buffer[at + 3], None)
            at += 4
        while size - at >= 2:
            end = at + 2 + buffer[at + 1]  # no packet to a client that only publishes has 128 bytes
            if buffer[at + 1] >= 128:
                length, body = _long_length(buffer, at + 1)
                end = body + length
            if end > size:
                break
            self._receive(buffer[at], bytes(buffer[at + 2 : end]))
            at = end
        del buffer[:at]
        if len(pending) < before:
            self._progress_at = time.monotonic()

    def _receive(self, kind: int, body: bytes) -> None:
        if kind == PINGRESP:
            self._pinged = False
        elif kind == DISCONNECT:
            code = body[0] if body else 0
            raise ConnectionResetError(f"the broker has sent DISCONNECT: {_reason(code)}")
        elif kind in (PUBACK, PUBREC, PUBCOMP) and len(body) >= 2:
            number, code = body[0] << 8 | body[1], body[2] if len(body) > 2 else 0
            packet = self._pending.get(number)
            if packet is None:
                return
            if code >= REFUSED:
                topic = _topic_of(packet)
                refused = f"has refused a message to {topic}: {_reason(code)}"
                hint = TOO_MUCH if code == QUOTA and topic.startswith("$transaction/") else ""
                raise BrokerError(f"{self._options.broker} {refused}", hint)
            if kind == PUBREC:
                self._write(PUBREL + body[:2])
            else:
                del self._pending[number]

    # ---- the connection ----

    def _reconnect(self, error: OSError) -> None:
        """The connection is lost: connect again, and let all that is not acknowledged be sent again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pending and time.monotonic() - self._progress_at > self._options.patience:
            raise BrokerError(f"{self._options.broker} acknowledges nothing: {error}") from None
        self._queue.extendleft(reversed(self._pending.values()))
        self._pending.clear()
        self._input.clear()
        self._pinged = False
        self._connect()

    def _connect(self) -> None:
        """Connect; try again for `patience`."""
        end = time.monotonic() + self._options.patience
        for attempt in range(1 << 30):
            try:
                self._socket = self._opened()
                return
            except OSError as error:
                pause = PAUSES[min(attempt, len(PAUSES) - 1)]
                if time.monotonic() + pause > end:
                    raise BrokerError(f"can't connect to {self._options.broker}: {error}") from None
                time.sleep(pause)

    def _opened(self) -> socket.socket:
        options, address = self._options, self._options.broker
        opened = socket.create_connection((address.host, address.port), REPLY_SECONDS)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                opened = self._context().wrap_socket(opened, server_hostname=address.host)
            opened.sendall(_connect_packet(self._client_id, options))
            self._accept(*_read_connack(opened))
            opened.settimeout(max(1.0, options.patience))
        except BaseException:
            opened.close()
            raise
        return opened

    def _context(self) -> ssl.SSLContext:
        options = self._options
        try:
            context = ssl.create_default_context(cafile=options.ca_file or None)
            if options.cert_file:
                context.load_cert_chain(options.cert_file, options.key_file)
        except OSError as error:
            raise BrokerError(f"can't read the certificates: {error}") from None
        return context

    def _accept(self, code: int, properties: bytes) -> None:
        """The broker has replied to CONNECT. Raises BrokerError: it refuses the connection; OSError: not now."""
        level = self._options.level
        if code in LATER[level]:
            raise ConnectionRefusedError(_reason(code if level == 5 else RETURN_CODES[code]))
        if code:
            reason = _reason(code if level == 5 else RETURN_CODES.get(code, code))
            raise BrokerError(f"{self._options.broker} has refused the connection: {reason}")
        found = _limits(properties)
        self._window = min(self._options.inflight, found.get(0x21, 65535))
        self._most_qos = found.get(0x24, 2)
        self._retains = bool(found.get(0x25, 1))
        self._largest = found.get(0x27, ANY_SIZE)
        self.has_transactions = TRANSACTIONS.encode() in properties
        self._is_limited = self._most_qos < 2 or not self._retains or self._largest < ANY_SIZE


def _reason(code: int) -> str:
    return REASONS.get(code, f"reason code 0x{code:02X}")


def _topic_of(packet: Packet) -> str:
    at = 1
    while packet.head[at] & 128:
        at += 1
    return packet.head[at + 3 :].decode("utf-8", "replace")


def _connect_packet(client_id: str, options: SinkOptions) -> bytes:
    """CONNECT with Clean Start, and without a session behind the connection [MQTT 5.0, 3.1]."""
    address = options.broker
    flags = 0x02 | (0x80 if address.user else 0) | (0x40 if address.password else 0)
    texts = [client_id, *filter(None, (address.user, address.password))]
    payload = b"".join(encoded_text("text of CONNECT", text) for text in texts)
    asked = b"\x26" + encoded_text("name", TRANSACTIONS) + encoded_text("value", "1")
    properties = bytes((len(asked),)) + asked if options.level == 5 else b""
    head = b"\0\4MQTT" + bytes((options.level, flags)) + b"\0\0" + properties
    return b"\x10" + encoded_length(len(head) + len(payload), "") + head + payload


def _read_connack(opened: socket.socket) -> tuple[int, bytes]:
    """Reason code and properties of CONNACK. Raises OSError: there is none."""
    head = _exactly(opened, 2)
    length = head[1]
    if head[0] != 0x20:
        raise ConnectionResetError("no MQTT broker replies there")
    if length >= 128:
        length = length & 127 | _exactly(opened, 1)[0] << 7
    body = _exactly(opened, length)
    if len(body) < 2:
        raise ConnectionResetError("no MQTT broker replies there")
    return body[1], body[2:]


def _exactly(opened: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = opened.recv(count - len(data))
        if not more:
            raise ConnectionResetError("the broker has closed the connection")
        data += more
    return data


def _long_length(buffer: bytearray, at: int) -> tuple[int, int]:
    """A Variable Byte Integer, and the place behind it; a length that is not complete is larger than the buffer."""
    length = shift = 0
    while at < len(buffer):
        length |= (buffer[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if not buffer[at - 1] & 128:
            return length, at
    return len(buffer), at


def _limits(properties: bytes) -> dict[int, int]:
    """The numbers among the properties of CONNACK, by identifier [MQTT 5.0, 3.2.2.3]."""
    found: dict[int, int] = {}
    at = 1
    while at > 0 and properties and properties[at - 1] & 128:
        at += 1  # behind the length
    sizes = {0x11: 4, 0x13: 2, 0x21: 2, 0x22: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}
    while at < len(properties):
        identifier = properties[at]
        at += 1
        if identifier in sizes:
            found[identifier] = int.from_bytes(properties[at : at + sizes[identifier]], "big")
            at += sizes[identifier]
        else:
            for _ in range(2 if identifier == 0x26 else 1):
                at += 2 + int.from_bytes(properties[at : at + 2], "big")
    return found
