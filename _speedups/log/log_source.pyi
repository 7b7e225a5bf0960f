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
        *,
        wanted: Callable[[bytes], bool],
        since: int,
        now: int,
        qos: int,
        keeps_retain: bool,
        identifier: int,
        on_progress: Callable[[], object],
        on_end: Callable[[], object],
    ) -> None: ...
    def cancel(self) -> None: ...
    def note(self) -> None: ...

def check(data: bytes) -> int: ...
