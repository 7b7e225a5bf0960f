"""Rows as PUBLISH packets."""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..errors import RowError

OF_MQTT_5 = ("expiry", "content_type", "response_topic", "correlation_data", "user_properties")  # columns
TEXT_MAX = 65535  # bytes [MQTT-1.5.4]
LONGEST = 268_435_455  # bytes behind the length of a packet
EXPIRY_MAX = 0xFFFFFFFF
KNOWN_TOPICS = 100_000
PUBLISH, DUP = 0x30, 0x08


class Packet(NamedTuple):
    """A PUBLISH packet without its packet identifier.

    Attributes:
        qos: 0, 1 or 2.
        head: up to the packet identifier.
        rest: behind it.
    """

    qos: int
    head: bytes
    rest: bytes


def packet_of(topic: str, payload: bytes) -> Packet:
    """A PUBLISH of MQTT 5.0, QoS 1, without properties."""
    head, rest = encoded_text("topic", topic), b"\0" + payload
    return Packet(1, bytes((PUBLISH | 2,)) + encoded_length(len(head) + 2 + len(rest), topic) + head, rest)


class Encoder:
    """Encodes rows.

    Args:
        level: protocol level, 4 or 5.
        qos, retain: of rows without such a column, or with null there.
    """

    def __init__(self, level: int, qos: int, retain: bool) -> None:
        self._level = level
        self._qos = qos
        self._retain = retain
        self._topics: dict[str, bytes] = {}  # encoded, with their lengths

    def packets(self, batch: Any) -> Iterator[Packet]:
        """A packet for each row of a record batch. Raises RowError: a value is not valid."""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        count = batch.num_rows
        topics, payloads = columns["topic"], columns["payload"]
        levels = columns.get("qos") or [None] * count
        retained = columns.get("retain") or [None] * count
        properties: Callable[[int], bytes] = self._none
        if self._level >= 5:
            some = {name: columns[name] for name in OF_MQTT_5 if name in columns}
            properties = (lambda row: _properties(some, row)) if some else self._empty
        for row in range(count):
            qos = self._qos if levels[row] is None else levels[row]
            retain = self._retain if retained[row] is None else retained[row]
            if qos not in (0, 1, 2):
                raise RowError(f"the QoS of a message to {topics[row]!r} must be 0, 1 or 2, not {qos}")
            payload = payloads[row]
            payload = b"" if payload is None else payload.encode() if isinstance(payload, str) else payload
            topic = self._topics.get(topics[row]) or self._topic(topics[row])
            rest = properties(row) + payload
            length = len(topic) + len(rest) + (2 if qos else 0)
            yield Packet(qos, bytes((PUBLISH | qos << 1 | retain,)) + encoded_length(length, topics[row]) + topic, rest)

    def _topic(self, topic: str | None) -> bytes:
        if topic is None:
            raise RowError("a row has no topic", "filter rows whose column topic is null")
        if not topic or "+" in topic or "#" in topic or "\0" in topic:
            raise RowError(f"{topic!r} is no topic name", "a topic name is not empty, and has none of +, # and NUL")
        if len(self._topics) >= KNOWN_TOPICS:
            self._topics.clear()
        encoded = self._topics[topic] = encoded_text("topic", topic)
        return encoded

    @staticmethod
    def _none(row: int) -> bytes:
        return b""

    @staticmethod
    def _empty(row: int) -> bytes:
        return b"\0"


def _properties(columns: dict[str, list[Any]], row: int) -> bytes:
    """The properties of a message with their length [MQTT 5.0, 3.3.2.3]."""
    block = bytearray()
    for name, values in columns.items():
        value = values[row]
        if value is None:
            continue
        if name == "expiry":
            if not 0 <= value <= EXPIRY_MAX:
                raise RowError(f"the expiry of a message must be from 0 to {EXPIRY_MAX} seconds, not {value}")
            block += struct.pack(">BI", 2, value)
        elif name == "user_properties":
            for key, text in value.items() if isinstance(value, dict) else value:
                block += b"\x26" + encoded_text(name, key) + encoded_text(name, text or "")
        else:
            block.append({"content_type": 3, "response_topic": 8, "correlation_data": 9}[name])
            block += encoded_text(name, value)
    return encoded_length(len(block), "") + bytes(block)


def encoded_text(name: str, value: str | bytes) -> bytes:
    """UTF-8 or bytes with their length [MQTT-1.5.4]. Raises RowError: they are too long; `name` is for that."""
    data = value.encode() if isinstance(value, str) else value
    if len(data) > TEXT_MAX:
        raise RowError(f"a {name} has {len(data)} bytes", f"MQTT allows {TEXT_MAX}")
    return len(data).to_bytes(2, "big") + data


def encoded_length(n: int, topic: str) -> bytes:
    """A Variable Byte Integer [MQTT-1.5.5]."""
    if n < 128:
        return bytes((n,))
    if n > LONGEST:
        raise RowError(f"a message to {topic!r} has {n} bytes", f"MQTT allows {LONGEST}")
    encoded = bytearray()
    while n >= 128:
        encoded.append(n & 127 | 128)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)
