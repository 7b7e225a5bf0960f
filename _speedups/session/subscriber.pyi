from enum import IntEnum

from .rights import Rights
from .tenant import Tenant
from .turn import Sender

class SessionKind(IntEnum):
    LOCAL = 0
    SHARED = 1
    PEER = 2
    LOG = 3

class Subscriber(Sender):
    session_id: int
    client_id: bytes
    rights: Rights | None
    kind: SessionKind
    tenant: Tenant | None
    shard: int
    subscription_weight: int
    @property
    def subscriptions_held(self) -> int: ...
