from collections.abc import Iterable

from .ticket_keys import TicketKeyRing

class TlsError(ValueError): ...

class TlsContext:
    expires: int
    def __init__(
        self,
        certificate: str,
        key: str,
        others: Iterable[tuple[str, str]] = (),
        *,
        client_ca: str = "",
        client_crl: str = "",
        required: bool = False,
        username_from: str = "none",
        version: str = "1.2",
        protocols: Iterable[str] = ("mqtt",),
        name: str = "",
        ticket_keys: TicketKeyRing | None = None,
        session_lifetime: int = 0,
    ) -> None: ...
    def index_of(self, name: str) -> int: ...
