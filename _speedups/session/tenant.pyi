from collections.abc import Callable, Iterator

class Tenant:
    prefix: bytes
    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    dropped: int
    connections: int
    sessions: int
    subscriptions: int
    subscription_bytes: int
    retained: int
    retained_bytes: int
    delayed: int
    queued_here: int
    queued_elsewhere: int
    queued_by_shard: dict[int, int] | None
    max_connections: int
    max_sessions: int
    max_subscriptions: int
    max_subscription_bytes: int
    max_retained: int
    max_retained_bytes: int
    max_delayed: int
    max_queued_bytes: int
    def __init__(self, prefix: bytes) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def queued_bytes(self) -> int: ...
    def set_limits(self, limits: dict[str, int]) -> None: ...

class Tenants:
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Tenant]: ...
    def get(self, prefix: bytes) -> Tenant | None: ...
    def at(self, prefix: bytes) -> Tenant: ...
    def set_limits(self, limits_of: Callable[[bytes], dict[str, int]]) -> None: ...
