"""A refusal, of a client or of a topic filter."""

from typing import NamedTuple

from ..._speedups.codec.reason_codes import ReasonCode


class Refusal(NamedTuple):
    """The reason code for the client, and the reason in words."""

    code: ReasonCode
    reason: str = ""
