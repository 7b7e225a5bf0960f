"""How long sessions outlive their connections: the Session Expiry Interval (section 5: 3.1.2.11.2)."""

import math

from ..._speedups.base.tick import TICKS_PER_SECOND
from ..._speedups.codec.packets import Connect
from ..config.schema import MqttConfig

NEVER = 0xFFFFFFFF
GRACE = 60  # seconds for which the belongings of an absent session outlive it


def interval_of(packet: Connect, config: MqttConfig) -> int | None:
    """The interval in seconds that a CONNECT asks for, as far as the configuration allows it.

    None: the interval that the configuration has at each time, for persistent sessions of levels 3 and 4.
    """
    if packet.protocol_level < 5:
        return 0 if packet.clean_start else None
    return limited(packet.properties.get("session_expiry_interval", 0), config)


def limited(interval: int, config: MqttConfig) -> int:
    """An interval, as far as the configuration allows it."""
    most = config.max_session_expiry
    return min(interval, math.ceil(most)) if most else interval


def deadline_after(interval: int | None, since: int, config: MqttConfig) -> int | None:
    """When a session ends whose connection has ended at `since`, both in the time of the turn's clock; None: never."""
    seconds = config.session_expiry or NEVER if interval is None else interval
    return None if seconds == NEVER else clock_after(seconds, since)


def kept_seconds(interval: int | None, config: MqttConfig) -> int:
    """For how long to keep what belongs to a session whose connection has ended; 0: for ever."""
    seconds = config.session_expiry or NEVER if interval is None else interval
    return 0 if seconds == NEVER else min(int(seconds) + GRACE, NEVER - 1)


def clock_after(seconds: float, since: int) -> int:
    """The time of the turn's clock at which that many seconds have passed, and never less: `since` is a whole tick."""
    return since + math.ceil(seconds * TICKS_PER_SECOND) + 1
