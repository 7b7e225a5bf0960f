from collections.abc import Callable

from .session import MessageSource
from .subscriber import Subscriber
from .turn import Turn

Take = Callable[[bytes, bytes, bytes, int, bytes], object]

class DirectMessage(MessageSource):
    def __init__(self, turn: Turn, topic: bytes, payload: bytes, qos: int, properties: bytes, seconds: int) -> None: ...

class Tap(Subscriber):
    def __init__(self, turn: Turn, take: Take) -> None: ...
