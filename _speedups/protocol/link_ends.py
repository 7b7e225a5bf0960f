"""The two brokers of a link, as its relay needs them: level, limits, and the marks that stop loops."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSource:
    """The broker that sends the messages."""

    level: int  # protocol level
    max_packet_size: int  # bytes; a larger packet ends the link
    notices: bytes = b""  # topic name of messages for the link itself; empty = there are none
    keeps_refused: bool = False  # messages that it refuses for its quota are to be sent to it again


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """The broker that gets the messages."""

    level: int  # protocol level
    max_packet_size: int = 0xFFFFFFFF  # bytes; larger packets end here
    max_topic_levels: int = 65_535
    control_characters: bool = True  # accepted in topic names
    retain_available: bool = True
    maximum_qos: int = 2  # messages with a higher QoS cross with this one


@dataclass(frozen=True, slots=True)
class LinkMarks:
    """User properties by which a message that has been at a broker before is found; only level 5 has them."""

    added: tuple[bytes, bytes] | None = None  # name and value that each message gets; None = none
    refused: Iterable[tuple[bytes, bytes]] = ()  # messages with one of these have been at the target, and end here
