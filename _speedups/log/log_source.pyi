from collections.abc import Callable

from ..session.session import MessageSource
from ..session.turn import Turn

class DamagedLog(ValueError): ...

class LogSource(MessageSource):
    index: int
    row: int
    sent: int
    def __init__(
        self,
        turn: Turn,
        blocks: list[tuple[bytes, int, bytes, int]],
        selection: tuple[Callable[[bytes], bool], int],
        *,
        now: int,
        options: int,
        identifier: int,
        on_progress: Callable[[], object],
        on_end: Callable[[], object],
    ) -> None: ...
    def cancel(self) -> None: ...
    def note(self) -> None: ...

def check(data: bytes) -> int: ...
