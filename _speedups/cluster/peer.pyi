from collections.abc import Callable

from _speedups.session.subscriber import Subscriber
from _speedups.session.turn import Turn

class Peer(Subscriber):
    def __init__(self, turn: Turn, number: int, node: bytes, send: Callable[[bytes], object]) -> None: ...
    def hold(self, wait: bool) -> None: ...
