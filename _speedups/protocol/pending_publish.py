"""A PUBLISH that hooks decide over: the channel hands it to the handler, which gives it back, perhaps changed."""

from typing import NamedTuple


class PendingPublish(NamedTuple):
    """A message that its client may publish, and the packet that it came with."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    packet_id: int  # 0 with QoS 0
    dup: bool
    properties: bytes  # a valid property block without its length, without alias and expiry
    expires: int  # time of the turn's clock; 0 = never
    trace: int = 0  # as in Publication of `_speedups/session/message.pxd`
