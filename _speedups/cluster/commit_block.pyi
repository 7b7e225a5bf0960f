from typing import Any

from ..session.session import Session

class Block:
    commit: bytes
    texts: list[bytes]
    acks: list[bytes]
    settled: bytes
    is_part: bool
    changes: list[tuple[Any, ...]]
    batch: bytes
    entry: tuple[bytes, bytes] | None
    @property
    def ended_assignments(self) -> list[tuple[bytes, int]]: ...
    def changes_without(self, known: list[bytes]) -> list[tuple[Any, ...]]: ...
    def __len__(self) -> int: ...
    def numbered(self, reply: list[int]) -> None: ...
    def unnumbered(self) -> list[Session]: ...
