from typing import Any

from _speedups.packets import Connect
from _speedups.router import Router
from _speedups.session import Session
from _speedups.turn import Outlet

class Channel(Outlet):
    session: Session | None
    claimed: Session | None
    connect: Connect | None
    identity: Any
    fault: str | None
    def __init__(self, router: Router, handler: Any) -> None: ...
    @property
    def protocol_level(self) -> int: ...
    def accept(self, session: Session, level: int, keep_alive: float) -> None: ...
    def detach(self) -> Session | None: ...
    def ignore(self) -> None: ...
    def reject(self, reason: str) -> None: ...
