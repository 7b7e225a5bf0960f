from collections.abc import Callable
from enum import IntEnum
from typing import Any

from _speedups.session.journal import Journal
from _speedups.session.trace import Tracer

COUNTERS: tuple[str, ...]
ACK_REASONS: dict[int, str]

class AckReason(IntEnum):
    NO_REASON = ...
    ONLY_THE_BROKER = ...
    NO_RIGHT = ...
    PAYLOAD_NOT_UTF_8 = ...
    TOO_MANY_UNRELEASED = ...
    REFUSED_BY_HOOK = ...
    MADE_INVALID_BY_HOOK = ...

class Outlet:
    closed: bool
    def send(self, data: bytes) -> None: ...
    def take_output(self) -> bytes: ...
    @property
    def waits(self) -> bool: ...

class Sender: ...

class Turn:
    journal: Journal
    sealed: int
    committed: int
    tick: int
    clock: int
    has_publish_hook: bool
    deliver_hook: Callable[[Any, bytes, bytes, int, bool, bytes], bool] | None
    tracer: Tracer | None
    uncommitted: int
    queued: int
    queued_bytes: int
    inflight: int
    def __init__(
        self,
        journal: Journal,
        store: Callable[[bytes], object] | None = None,
        report: Callable[[Exception], object] | None = None,
    ) -> None: ...
    def set_limits(
        self,
        *,
        max_packet_size: int,
        max_topic_levels: int,
        max_inflight: int,
        max_queued_messages: int,
        max_queued_bytes: int,
        drop_oldest: bool,
        max_awaiting_release: int,
        max_outgoing_bytes: int,
        max_uncommitted_bytes: int,
        control_characters: bool = False,
        validate_payload: bool = False,
        receive_maximum: int = 65535,
        topic_alias_maximum: int = 0,
        shared_window: int = 32,
        shared_max_messages: int = 100_000,
        shared_max_bytes: int = 1 << 28,
    ) -> None: ...
    def set_hooks(
        self, has_publish_hook: bool, deliver_hook: Callable[[Any, bytes, bytes, int, bool, bytes], bool] | None
    ) -> None: ...
    def follow(self, tracer: Tracer | None) -> None: ...
    def count(self, counter: int, n: int = 1) -> None: ...
    def counted(self) -> dict[str, int]: ...
    def add_full_queues(self, dropped: dict[bytes, int]) -> None: ...
    def take_full_queues(self) -> dict[bytes, int]: ...
    def advance(self, ticks: int, missed: int = 0) -> None: ...
    def after_commit(self, callback: Callable[[], object]) -> None: ...
    def confirm(self, blocks: int = 1) -> None: ...
    def seal(self) -> int: ...
    def end(self) -> bool: ...
