from collections.abc import Iterable

from .rights import Rights

CLIENT_ID: int
USERNAME: int
TEXT: int

class Patterns:
    names: int
    def __init__(self, rules: Iterable[tuple[bool, int, bytes, int]]) -> None: ...
    def rights(self, client_id: str, username: str | None) -> Rights: ...
