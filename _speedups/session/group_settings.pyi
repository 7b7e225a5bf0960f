STRATEGIES: tuple[str, ...]

class GroupSettings:
    window: int
    max_messages: int
    max_bytes: int
    drop_oldest: bool
    strategy: str
    max_expiry: int
    last_value: bool
    max_deliveries: int
    dead_letter_topic: bytes
    paused: bool
    declared: bool
    declaration: bytes
    def __init__(
        self,
        *,
        declaration: bytes = b"",
        window: int = 32,
        max_messages: int = 100_000,
        max_bytes: int = 1 << 28,
        drop_oldest: bool = False,
        strategy: str = "rotation",
        max_expiry: int = 0,
        last_value: bool = False,
        max_deliveries: int = 0,
        dead_letter_topic: bytes = b"",
        paused: bool = False,
    ) -> None: ...
    def set(
        self,
        *,
        window: int = 32,
        max_messages: int = 100_000,
        max_bytes: int = 1 << 28,
        drop_oldest: bool = False,
        strategy: str = "rotation",
        max_expiry: int = 0,
        last_value: bool = False,
        max_deliveries: int = 0,
        dead_letter_topic: bytes = b"",
        paused: bool = False,
    ) -> None: ...
