from collections.abc import Callable

from ..log.message_log import MessageLog
from ..session.journal import Journal
from .commit_block import Block
from .journal import ClusterJournal

def shard_of(name: bytes, shards: int) -> int: ...
def topic_shard(topic: bytes, shards: int) -> int: ...

class ShardedJournal(Journal):
    home: int
    newest_retained: int
    def __init__(self, headers: list[Callable[[int], bytes]], node: bytes) -> None: ...
    def attach(self, log: MessageLog) -> None: ...
    def part(self, shard: int) -> ClusterJournal: ...
    def take(self) -> ShardedBlock: ...  # type: ignore[override]
    def forget(self, shard: int, number: bytes) -> None: ...

class ShardedBlock:
    given: list[tuple[int, Block]]
    ending: list[tuple[int, ClusterJournal]]
    numbers: list[tuple[int, bytes]]
    def __len__(self) -> int: ...
