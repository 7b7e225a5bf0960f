"""Properties of messages in JSON: schema and conversion, by the codec's table of properties."""

import base64
import binascii
from typing import Any

from ...._speedups.codec.properties import USER_PROPERTIES_MAX, decode_block, encode_block
from ...._speedups.codec.tables import PACKET_TYPES, PROPERTIES, Property, WireType
from ..http.problems import unfit
from .schema import Schema, array, integer, record, text

MAX_TEXT = 65_535  # characters of a property: MQTT has as many bytes
PUBLISH = next(row.packet_type for row in PACKET_TYPES if row.name == "PUBLISH")
NOT_OF_MESSAGES = {"topic_alias", "subscription_identifier"}  # they belong to one connection
ROWS = {row.name: row for row in PROPERTIES if row.packets >> PUBLISH & 1 and row.name not in NOT_OF_MESSAGES}
PAIR = record({"name": text(maxLength=MAX_TEXT), "value": text(maxLength=MAX_TEXT)})


def _schema_of(row: Property) -> Schema:
    if row.wire == WireType.PAIR:
        return array(PAIR, "in their order", maxItems=USER_PROPERTIES_MAX)
    if row.wire == WireType.BINARY:
        return text("base64", maxLength=2 * MAX_TEXT)
    if row.wire in (WireType.STRING, WireType.TOPIC):
        return text(maxLength=MAX_TEXT)
    return integer(minimum=0, maximum=1 if row.wire == WireType.BYTE else 0xFFFFFFFF)


SCHEMA = record({}, {name: _schema_of(row) for name, row in ROWS.items()}, "of MQTT 5.0")


def block_of(given: dict[str, Any]) -> bytes:
    """The property block of a PUBLISH for checked properties in JSON. Raises Problem."""
    try:
        return encode_block({name: _value(ROWS[name], value) for name, value in given.items()})
    except (ValueError, binascii.Error) as fault:
        raise unfit(f"properties: {fault}") from None


def _value(row: Property, value: Any) -> Any:
    if row.wire == WireType.PAIR:
        return [(pair["name"], pair["value"]) for pair in value]
    if row.wire == WireType.BINARY:
        return base64.b64decode(value, validate=True)
    return value


def shown(block: bytes) -> dict[str, Any]:
    """The properties in a property block, for JSON."""
    return {name: _shown(value) for name, value in decode_block(block).items() if name in ROWS} if block else {}


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [{"name": name, "value": text} for name, text in value] if isinstance(value, list) else value
