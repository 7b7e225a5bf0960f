from ..session.turn import Turn
from .delayed import DelayedMessages
from .foreign_sessions import ForeignSessions
from .retained import RetainedSearch, RetainedTree
from .subscriptions import SubscriptionTree

class Router:
    turn: Turn
    filters: SubscriptionTree
    foreign: ForeignSessions
    retained: RetainedTree
    delayed: DelayedMessages
    def __init__(self, turn: Turn) -> None: ...
    def publish(
        self,
        topic: bytes,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        publisher: bytes | None = None,
        properties: bytes = b"",
        will: int = 0,
        progress: int = 0,
    ) -> int: ...
    def publish_delayed(self, most: int) -> int: ...
    def clear_retained(self, topic: bytes) -> None: ...
    def expire_retained(self) -> list[bytes]: ...
    def deliver(self, batch: bytes) -> int: ...
    def record_retained(self, search: RetainedSearch, most: int) -> bool: ...
