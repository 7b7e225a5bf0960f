from collections.abc import Callable, Mapping

from ..routing.router import Router

class Progress:
    seen: int
    credited: int

class Batches:
    def __init__(
        self,
        router: Router,
        members: Mapping[bytes, Progress],
        departed: Mapping[bytes, Progress],
        confirm: Callable[[bytes, int], object],
        other: Callable[[bytes], object],
    ) -> None: ...
    def receive(self, channel: bytes, payload: bytes) -> int: ...
