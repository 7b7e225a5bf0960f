from enum import IntEnum
from typing import NamedTuple

CLIENT: str
SERVER: str
BOTH: str

class WireType(IntEnum):
    ABSENT = 0
    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 3
    VARINT = 4
    STRING = 5
    BINARY = 6
    PAIR = 7
    TOPIC = 8

class PacketType(NamedTuple):
    packet_type: int
    name: str
    flags: int | None
    sender: str
    first_level: int

class Property(NamedTuple):
    identifier: int
    name: str
    wire: int
    packets: int
    repeatable: int
    zero_code: int | None

class ReasonCode(NamedTuple):
    code: int
    name: str
    packets: int

PACKET_TYPES: tuple[PacketType, ...]
PROPERTIES: tuple[Property, ...]
REASON_CODES: tuple[ReasonCode, ...]

def packets(*packet_types: int) -> int: ...
