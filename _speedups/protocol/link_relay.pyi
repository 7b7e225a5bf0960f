from collections.abc import Iterable
from typing import final

from ..codec.packets import Packet
from .link_ends import LinkMarks, LinkSource, LinkTarget

class QuotaExceeded(Exception): ...

@final
class TopicRule:
    topic_filter: bytes
    removed: bytes
    added: bytes
    def __init__(self, topic_filter: bytes, removed: bytes, added: bytes) -> None: ...

@final
class Echoes:
    def __init__(self) -> None: ...
    def note(self, message: tuple[bytes, bytes]) -> None: ...
    def take(self, message: tuple[bytes, bytes]) -> bool: ...
    def forget(self) -> None: ...

@final
class LinkRelay:
    relayed: int
    relayed_bytes: int
    unmatched: int
    invalid: int
    too_large: int
    looped: int
    echoed: int
    refused: int
    last_refusal: int
    def __init__(
        self,
        source: LinkSource,
        target: LinkTarget,
        rules: Iterable[TopicRule],
        *,
        marks: LinkMarks = ...,
        lowered: set[int] | None = ...,
        to_remember: Echoes | None = ...,
        remembered: Echoes | None = ...,
    ) -> None: ...
    def feed(self, data: bytes) -> list[Packet]: ...
    def begin(self, *marks: tuple[bytes, bytes]) -> list[Packet]: ...
    def release(self, packet_ids: Iterable[int]) -> None: ...
    def take_output(self) -> bytes: ...
    def take_replies(self) -> bytes: ...
