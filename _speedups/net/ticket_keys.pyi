from collections.abc import Iterable

KEY_SIZE: int

class TicketKeyRing:
    def __init__(self) -> None: ...
    def use(self, keys: Iterable[bytes]) -> None: ...
