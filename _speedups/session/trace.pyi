from collections.abc import Iterable

STEPS: tuple[str, ...]
Event = tuple[float, str, int, bytes, bytes | None, int, int, str]

class Tracer:
    def __init__(self, filters: Iterable[bytes | None]) -> None: ...
    def take(self) -> tuple[list[Event], dict[bytes | None, int]]: ...
