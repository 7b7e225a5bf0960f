from collections.abc import Callable

from ..session.subscriber import Subscriber
from ..session.turn import Turn

class MessageLog(Subscriber):
    suspended: bool
    lacking: int
    rows_before: int
    bytes_before: int
    def __init__(self, turn: Turn, write: Callable[[bytes, bytes], object], wait: Callable[[], object]) -> None: ...
    def continue_after(self, *, ms: int, size: int, rows: int, lacking: int) -> None: ...
    def close(self) -> None: ...
