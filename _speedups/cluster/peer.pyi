from collections.abc import Callable

from _speedups.session.session import Session
from _speedups.session.turn import Turn

class Peer(Session):
    def __init__(self, turn: Turn, number: int, node: bytes, send: Callable[[bytes], object]) -> None: ...
    def hold(self, wait: bool) -> None: ...
