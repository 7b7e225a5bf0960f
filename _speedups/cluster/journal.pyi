from collections.abc import Callable
from typing import Any

from ..log.message_log import MessageLog
from ..session.journal import Journal
from .commit_block import Block
from .group_records import GroupRecords

class ClusterJournal(Journal):
    log: MessageLog | None
    group_records: GroupRecords
    def __init__(self, header: Callable[[int], bytes], node: bytes = ...) -> None: ...
    shard: int
    def attach(self, log: MessageLog) -> None: ...
    def take(self) -> Block: ...  # type: ignore[override]
    def change(self, record: tuple[Any, ...]) -> None: ...
    def limit_pushes(self, most: int) -> None: ...
    def flush_forgotten(self) -> None: ...
    def will_settled(self, epoch: int) -> None: ...
    def drop_held_will(self, epoch: int) -> None: ...
    def release(
        self,
        client_id: bytes,
        epoch: int,
        sent: int | None = None,
        interval: int | None = None,
        delay: int | None = None,
        overtaken: bool = False,
    ) -> None: ...
