from collections.abc import Iterator
from typing import Any

from _speedups.net.connection import Connection
from _speedups.routing.router import Router
from _speedups.session.turn import Turn

class Loop:
    turn: Turn
    connect_ticks: int
    retry_ticks: int
    pending: int
    def __init__(self, router: Router, handler: Any) -> None: ...
    def fileno(self) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Connection]: ...
    def close(self) -> None: ...
