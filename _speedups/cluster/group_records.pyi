from collections.abc import Callable
from typing import Any

from .hand_over import HandOver

class GroupRecords:
    to_tick: set[Any]  # of GroupAssignments
    under_way: dict[tuple[bytes, int], int]
    unsure: list[HandOver]
    def follow_claims(self, epoch_of: Callable[[Any], int]) -> None: ...
    def set_limits(self, most: int, most_bytes: int, drop_oldest: bool) -> None: ...
    def give_back(self, group: bytes, place: int) -> None: ...
    @property
    def ended(self) -> list[tuple[bytes, int]]: ...
