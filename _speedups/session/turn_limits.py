"""The limits of a node for each connection and session, as its configuration describes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """The limits, in bytes and counts; turn.pxd has their meaning."""

    max_packet_size: int
    max_topic_levels: int
    max_inflight: int
    max_queued_messages: int
    max_queued_bytes: int
    drop_oldest: bool
    max_awaiting_release: int
    max_outgoing_bytes: int
    max_uncommitted_bytes: int
    control_characters: bool = False
    validate_payload: bool = False
    receive_maximum: int = 65_535
    topic_alias_maximum: int = 0
