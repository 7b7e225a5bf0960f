"""The reports of a `ClientSession`: its events, the fault that ends a connection, and reason codes in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from ..codec.packets import Connack, Disconnect, Publish
from ..codec.tables import REASON_CODES

MAX_PACKET_ID = 65535
CONTINUE_AUTHENTICATION = 0x18  # of AUTH
FIRST_ERROR = 0x80  # the first reason code of refusals (SUBACK at every level; level 5 everywhere)
PROTOCOL_ERROR, RECEIVE_MAXIMUM_EXCEEDED, TOPIC_ALIAS_INVALID, PACKET_TOO_LARGE = 0x82, 0x93, 0x94, 0x95
# CONNACK return codes of levels 3 and 4: table 3.1.
RETURN_CODES: Mapping[int, str] = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
NO_PROPERTIES: Mapping[str, Any] = {}


class Accepted(NamedTuple):
    """CONNACK that accepts; messages may pass."""

    session_present: bool
    properties: Mapping[str, Any] = NO_PROPERTIES  # level 5


class Refused(NamedTuple):
    """CONNACK that refuses: the end of the connection."""

    reason_code: int
    reason: str  # in words
    properties: Mapping[str, Any] = NO_PROPERTIES  # level 5


class Disconnected(NamedTuple):
    """DISCONNECT from the broker, level 5: the end of the connection."""

    reason_code: int
    reason: str  # in words, and the broker's reason string
    properties: Mapping[str, Any] = NO_PROPERTIES


class Subscribed(NamedTuple):
    """SUBACK: for each topic filter the granted QoS, or a reason code from 0x80 on."""

    reason_codes: list[int]
    token: Any = None
    properties: Mapping[str, Any] = NO_PROPERTIES  # level 5


class Unsubscribed(NamedTuple):
    """UNSUBACK."""

    reason_codes: list[int]  # level 5; else empty
    token: Any = None
    properties: Mapping[str, Any] = NO_PROPERTIES  # level 5


class Acknowledged(NamedTuple):
    """PUBACK or PUBCOMP, or at level 5 a PUBREC that refuses: a publication at QoS 1 or 2 has ended.

    PACKET_TOO_LARGE also ends one that waited and exceeds the Maximum Packet Size of the new connection.
    """

    token: Any
    reason_code: int = 0
    properties: Mapping[str, Any] = NO_PROPERTIES  # level 5


Event: TypeAlias = Accepted | Refused | Disconnected | Subscribed | Unsubscribed | Acknowledged | Publish


class ProtocolViolation(Exception):
    """The broker has sent data that the standard forbids, as the text says; the connection must end.

    Args:
        reason: the fault.
        events: the events of the same bytes before the fault.
        reason_code: the code of the DISCONNECT that level 5 sends for it.
    """

    def __init__(self, reason: str, events: list[Event], reason_code: int = PROTOCOL_ERROR) -> None:
        super().__init__(reason)
        self.events = events
        self.reason_code = reason_code


class PacketIdsExhausted(Exception):
    """65535 packets await their acknowledgement."""

    def __init__(self) -> None:
        super().__init__(f"{MAX_PACKET_ID} packets await their acknowledgement")


def reason_of(packet: Connack | Disconnect, level: int) -> str:
    """The text for a CONNACK or DISCONNECT that ends the connection."""
    code = packet.reason_code
    if level < 5:
        return RETURN_CODES.get(code, f"return code {code}")
    return reason_text(code, packet.properties)


def reason_text(reason_code: int, properties: Mapping[str, Any]) -> str:
    """The name of a reason code of level 5, and the reason string of its packet, if there is one."""
    text = properties.get("reason_string")
    return f"{reason_name(reason_code)}: {text}" if text else reason_name(reason_code)


def reason_name(reason_code: int) -> str:
    """The name of a reason code of level 5."""
    return next((row.name for row in REASON_CODES if row.code == reason_code), f"reason code 0x{reason_code:02x}")
