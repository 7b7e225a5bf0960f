from collections.abc import Callable

from _speedups.session.session import Session
from _speedups.session.turn import Turn

class MessageLog(Session):
    suspended: bool
    lacking: int
    rows_before: int
    bytes_before: int
    def __init__(self, turn: Turn, write: Callable[[bytes, bytes], object], wait: Callable[[], object]) -> None: ...
    def close(self) -> None: ...
