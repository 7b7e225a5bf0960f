from typing import Any

from .subscriber import Subscriber
from .turn import Turn

class SessionQueue(Subscriber):
    owner: Any
    away_since: int
    persistent: bool
    level: int
    def __init__(
        self,
        turn: Turn,
        number: int,
        client_id: bytes,
        *,
        persistent: bool,
        level: int = 4,
        restoring: bool = False,
        shared: bool = False,
    ) -> None: ...
    @property
    def queue_length(self) -> int: ...
    @property
    def queue_bytes(self) -> int: ...
    @property
    def inflight(self) -> int: ...
    @property
    def awaiting_release(self) -> int: ...
