"""The persistence file of Mosquitto (mosquitto.db): its chunks, of the format versions 3 to 6.

Mosquitto up to 1.5.5 writes version 3, 1.5.6 to 1.5.11 version 4, 1.6 versions 5 and 6, 2.0 and 2.1 version 6. The file
is a header and chunks; a chunk is its kind, its length and its fields. Messages come first, then each client with its
deliveries, subscriptions, and retained messages.

- Numbers of 64 bits, and times, are in the byte order of the machine that wrote them: little-endian is read. All other
  numbers are big-endian.
- The file has no checksum (the field for it is always 0), so every field is checked that can be.
- In versions 3 and 4 the length of a chunk is not used, as Mosquitto does not use it: 1.5.6 writes wrong ones.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from ..._speedups.codec.properties import check_properties, decode_block, encode_block
from ..._speedups.codec.topics import InvalidTopic, validate_topic_filter, validate_topic_name
from ...broker.core.subscription_options import STORED_OPTIONS

MAGIC = b"\x00\xb5\x00mosquitto db"
VERSIONS = range(3, 7)
HEAD = Struct(">II")  # checksum, version; after MAGIC
CHUNK, OLD_CHUNK = Struct(">II"), Struct(">HI")  # kind, length; the second is of versions 3 and 4
SETTINGS, OLD_SETTINGS = Struct("<QBB"), Struct("<BBQ")  # last id, clean end, size of an id
ID = Struct("<Q")  # of a message in the file
SHORT, BYTE = Struct(">H"), Struct(">B")
PUBLISH = 3
QUOTA_EXCEEDED = 0x97  # more user properties than a packet may have here: no damage
MESSAGE_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS = 0x02, 0x0B, 0x23
OUT = 1  # direction of a delivery: to the client
OPTIONS_MAX = 0x2F  # all options of level 5; Mosquitto 2.1 writes Retain Handling too

# States of a delivery. Versions 3 to 6 have the same.
RESEND_PUBREL, WAIT_FOR_PUBREL, RESEND_PUBCOMP, WAIT_FOR_PUBCOMP, SEND_PUBREC, QUEUED = range(6, 12)


class StoredMessage(NamedTuple):
    """A message, which deliveries and retained messages name."""

    store_id: int
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes = b""  # a block without its length
    expires: int = 0  # seconds since 1970; 0 = never


class StoredClient(NamedTuple):
    """A persistent session."""

    client_id: bytes
    last_packet_id: int  # that was given to a message for it
    interval: int | None = None  # Session Expiry Interval; None: before level 5
    expires: int = 0  # seconds since 1970; 0 = never, or it was connected
    left: int = 0  # seconds since 1970; versions 3 and 4
    user: bytes = b""  # as its CONNECT had it; version 6
    port: int = 0  # of the listener that it has connected to since Mosquitto started; version 6


class Delivery(NamedTuple):
    """A message of a session that is not done: on its way to the client, or from it."""

    client_id: bytes
    store_id: int
    packet_id: int
    qos: int
    state: int
    retain: bool
    dup: bool
    outgoing: bool
    identifiers: bytes = b""  # of subscriptions, as properties


class StoredSubscription(NamedTuple):
    """A subscription."""

    client_id: bytes
    topic_filter: bytes
    options: int  # as in SUBSCRIBE
    identifier: int = 0


class Retained(NamedTuple):
    """A retained message."""

    store_id: int


Chunk = StoredMessage | StoredClient | Delivery | StoredSubscription | Retained


class DamagedFile(ValueError):
    """The file is not what Mosquitto writes."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")


class CutFile(DamagedFile):
    """The file ends within a chunk."""


class _Fault(ValueError):
    """A field is wrong."""


class _Short(_Fault):
    """A field ends after its chunk, or after the file."""


class _Fields:
    """Reads fields of a file, one after the other.

    Args:
        data: the file.
        at: where they begin.
        end: where they end.
    """

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self.end = end

    def take(self, count: int) -> bytes:
        """So many bytes."""
        if count > self.end - self.at:
            raise _Short("a field does not end within its chunk")
        self.at += count
        return self._data[self.at - count : self.at]

    def part(self, length: int) -> "_Fields":
        """The fields in the next so many bytes."""
        begin = self.at
        self.take(length)
        return _Fields(self._data, begin, self.at)

    def read(self, layout: Struct) -> tuple[int, ...]:
        """Numbers."""
        return layout.unpack(self.take(layout.size))

    def number(self, layout: Struct) -> int:
        """A number."""
        return int(self.read(layout)[0])

    def prefixed(self) -> bytes:
        """Bytes, after their length in 16 bits."""
        return self.take(self.number(SHORT))

    def properties(self) -> bytes:
        """A property block up to the end, without its length; empty if nothing is left."""
        if self.at == self.end:
            return b""
        length = shift = 0
        while True:
            byte = self.number(BYTE)
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if length != self.end - self.at:
            raise _Fault("properties do not end with their chunk")
        return self.take(length)


def chunks(data: bytes) -> Iterator[Chunk]:
    """The chunks of a file, in its order.

    Raises:
        DamagedFile: at the chunk that is not right, or at the begin of a file that is none of Mosquitto's.
        CutFile: at the last chunk, of which a part is missing; or at the end, if no session or topic has the messages.
    """
    if not data.startswith(MAGIC):
        raise DamagedFile(0, "it does not begin as a mosquitto.db does")
    fields = _Fields(data, len(MAGIC), len(data))
    try:
        _, version = fields.read(HEAD)
    except _Short:
        raise CutFile(len(MAGIC), "the file ends within its header") from None
    if version not in VERSIONS:
        known = f"{VERSIONS[0]} to {VERSIONS[-1]} are"
        raise DamagedFile(len(MAGIC) + 4, f"its format version is {version}; {known} known")
    read = _read_old_chunk if version < 5 else _read_chunk
    if fields.at == len(data):
        raise CutFile(fields.at, "the file ends after its header")
    kinds: set[type[Chunk]] = set()
    while fields.at < len(data):
        begin = fields.at
        try:
            for chunk in read(fields, version):
                kinds.add(type(chunk))
                yield chunk
        except _Cut:
            raise CutFile(begin, "the file ends within a chunk") from None
        except (_Fault, InvalidTopic, UnicodeDecodeError) as fault:
            raise DamagedFile(begin, str(fault)) from None
    # Mosquitto writes only messages of a session or a topic, but for clients without a persistent session.
    if kinds == {StoredMessage}:
        raise CutFile(fields.at, "the file ends after its messages")


class _Cut(Exception):
    """The file ends."""


def _read_chunk(fields: _Fields, version: int) -> Iterator[Chunk]:
    """A chunk of version 5 or 6."""
    try:
        kind, length = fields.read(CHUNK)
        content = fields.part(length)
    except _Short:
        raise _Cut from None
    yield from _kind(KINDS, kind)(content, version)
    if content.at != content.end:
        raise _Fault("a chunk is longer than its fields")


def _read_old_chunk(fields: _Fields, version: int) -> Iterator[Chunk]:
    """A chunk of version 3 or 4, whose fields have their lengths."""
    try:
        kind, _ = fields.read(OLD_CHUNK)
        yield from _kind(OLD_KINDS, kind)(fields, version)
    except _Short:
        raise _Cut from None


def _kind(kinds: dict[int, "Read"], kind: int) -> "Read":
    if kind not in kinds:
        raise _Fault(f"there is no chunk of kind {kind}")
    return kinds[kind]


# ---- versions 5 and 6 ----


def _settings(fields: _Fields, _: int) -> Iterator[Chunk]:
    _check_id_size(fields.read(SETTINGS)[2])
    fields.take(fields.end - fields.at)  # the padding depends on the machine
    yield from ()


def _message(fields: _Fields, _: int) -> Iterator[Chunk]:
    store_id, expires = fields.read(Struct("<Qq"))
    payload_length, _mid, id_length, user_length, topic_length, _port, qos, retain = fields.read(Struct(">IHHHHHBB"))
    fields.take(id_length + user_length)  # of the publisher
    topic, payload = fields.take(topic_length), fields.take(payload_length)
    yield _checked_message(store_id, topic, payload, qos, retain, _properties(fields), max(0, expires))


def _client(fields: _Fields, version: int) -> Iterator[Chunk]:
    expires = fields.number(Struct("<q"))
    interval, last_packet_id, id_length = fields.read(Struct(">IHH"))
    port = user_length = 0
    if version >= 6:
        port, user_length = fields.read(Struct(">HH"))
        padding = fields.end - fields.at - id_length - user_length
        if padding not in (0, 4):  # 0: by a machine of 32 bits
            raise _Fault("the lengths of a client do not add up")
        fields.take(padding)
    client_id, user = _text(fields.take(id_length)), _text(fields.take(user_length))
    yield StoredClient(client_id, last_packet_id, interval, max(0, expires), user=user, port=port)


def _delivery(fields: _Fields, _: int) -> Iterator[Chunk]:
    store_id = fields.number(ID)
    packet_id, id_length, qos, state, flags, direction = fields.read(Struct(">HHBBBB"))
    client_id = _text(fields.take(id_length))
    properties = fields.properties()
    seen = _check(properties)
    if seen - {SUBSCRIPTION_IDENTIFIER}:
        raise _Fault("a delivery has properties of a message")
    retain, dup, is_out = bool(flags >> 4), bool(flags & 15), _is_outgoing(direction)
    yield _checked_delivery(Delivery(client_id, store_id, packet_id, qos, state, retain, dup, is_out, properties))


def _subscription(fields: _Fields, _: int) -> Iterator[Chunk]:
    identifier, id_length, filter_length, qos, options = fields.read(Struct(">IHHBB"))
    fields.take(2)
    client_id, topic_filter = fields.take(id_length), fields.take(filter_length)
    yield _checked_subscription(client_id, topic_filter, qos, options, identifier)


def _retained(fields: _Fields, _: int) -> Iterator[Chunk]:
    yield Retained(fields.number(ID))


# ---- versions 3 and 4 ----


def _old_settings(fields: _Fields, _: int) -> Iterator[Chunk]:
    _check_id_size(fields.read(OLD_SETTINGS)[1])
    yield from ()


def _old_message(fields: _Fields, version: int) -> Iterator[Chunk]:
    store_id = fields.number(ID)
    fields.prefixed()  # client id of the publisher
    if version == 4:
        fields.prefixed()  # its user name
        fields.take(2)  # port
    fields.take(4)  # packet identifiers
    topic = fields.prefixed()
    qos, retain, payload_length = fields.read(Struct(">BBI"))
    yield _checked_message(store_id, topic, fields.take(payload_length), qos, retain, b"", 0)


def _old_client(fields: _Fields, _: int) -> Iterator[Chunk]:
    client_id, last_packet_id = _text(fields.prefixed()), fields.number(SHORT)
    yield StoredClient(client_id, last_packet_id, left=fields.number(Struct("<q")))


def _old_delivery(fields: _Fields, _: int) -> Iterator[Chunk]:
    client_id, store_id = _text(fields.prefixed()), fields.number(ID)
    packet_id, qos, retain, direction, state, dup = fields.read(Struct(">HBBBBB"))
    is_out = _is_outgoing(direction)
    yield _checked_delivery(Delivery(client_id, store_id, packet_id, qos, state, bool(retain), bool(dup), is_out, b""))


def _old_subscription(fields: _Fields, _: int) -> Iterator[Chunk]:
    client_id, topic_filter = fields.prefixed(), fields.prefixed()
    yield _checked_subscription(client_id, topic_filter, fields.number(BYTE), 0, 0)


Read = Callable[[_Fields, int], Iterator[Chunk]]
KINDS: dict[int, Read] = dict(enumerate((_settings, _message, _delivery, _retained, _subscription, _client), 1))
OLD_KINDS: dict[int, Read] = dict(
    enumerate((_old_settings, _old_message, _old_delivery, _retained, _old_subscription, _old_client), 1)
)


# ---- checks ----


def _text(value: bytes) -> bytes:
    value.decode()
    return value


def _check_id_size(size: int) -> None:
    if size != ID.size:
        raise _Fault(f"the identifiers of its messages have {size} bytes, not {ID.size}")


def _check_qos(qos: int) -> None:
    if qos > 2:
        raise _Fault(f"a QoS of {qos}")


def _check(properties: bytes) -> set[int]:
    """Check a property block of a PUBLISH; returns the identifiers that it has."""
    code, seen, _, _ = check_properties(properties, PUBLISH)
    if code not in (0, QUOTA_EXCEEDED):
        raise _Fault("its properties are not those of a PUBLISH")
    return set(seen)


def _properties(fields: _Fields) -> bytes:
    """The properties of a message that go to its subscribers as they are."""
    block = fields.properties()
    others = _check(block) & {MESSAGE_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS}
    if others:
        properties = decode_block(block)
        for name in ("message_expiry_interval", "subscription_identifier", "topic_alias"):
            properties.pop(name, None)
        block = encode_block(properties)
    return block


def _checked_message(
    store_id: int, topic: bytes, payload: bytes, qos: int, retain: int, properties: bytes, expires: int
) -> StoredMessage:
    _check_qos(qos)
    validate_topic_name(topic)
    return StoredMessage(store_id, topic, payload, qos, bool(retain), properties, expires)


def _checked_delivery(delivery: Delivery) -> Delivery:
    _check_qos(delivery.qos)
    if delivery.state > QUEUED or (delivery.qos and not delivery.packet_id):
        raise _Fault("a delivery has a state or a packet identifier that is none")
    return delivery


def _is_outgoing(direction: int) -> bool:
    if direction > OUT:
        raise _Fault("a delivery has a direction that is none")
    return direction == OUT


def _checked_subscription(
    client_id: bytes, topic_filter: bytes, qos: int, options: int, identifier: int
) -> StoredSubscription:
    _check_qos(qos)
    validate_topic_filter(topic_filter, 5)
    if options > OPTIONS_MAX:
        raise _Fault(f"subscription options of {options}")
    return StoredSubscription(_text(client_id), topic_filter, qos | options & STORED_OPTIONS, identifier)
