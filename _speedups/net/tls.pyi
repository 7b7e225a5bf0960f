from collections.abc import Iterable

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
    ) -> None: ...
