"""URLs of databases with users, parsed into fields. Nothing here connects to one.

    postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?OPTION=VALUE&...]      options of libpq, such as sslmode
    mysql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?OPTION=VALUE&...]           or mariadb://
    sqlite:PATH

Options of mysql: socket (the path of a Unix socket, in place of the host), ca_file, cert_file, key_file, and verify:
full, ca (any name) or none (no TLS). Beyond this machine a connection has TLS with a verified certificate unless an
option says otherwise.
"""

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from .kinds import Kind
from .redis_url import masked

KINDS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
MYSQL_PORT = 3306
MYSQL_OPTIONS = ("socket", "ca_file", "cert_file", "key_file", "verify")
VERIFY = ("full", "ca", "none")
LOCAL = ("", "localhost", "127.0.0.1", "::1")
EXPECTED = "postgresql://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE or sqlite:PATH"


@dataclass(frozen=True)
class SqlUrl:
    """A parsed URL."""

    kind: str  # postgresql, mysql or sqlite
    host: str = ""
    port: int = 0  # 0 = the usual one
    username: str = ""
    password: str = field(default="", repr=False)
    database: str = ""  # of sqlite: the path
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str) -> Self:
        """The fields of a URL.

        Raises:
            ValueError: the text completes the sentence "expected ...", and holds no password.
        """
        scheme, colon, path = url.partition(":")
        kind = KINDS.get(scheme, "")
        if not (kind and colon and path) or not url.isprintable() or " " in url:
            raise ValueError(EXPECTED)
        if kind == "sqlite":
            return cls(kind, database=path)
        if not path.startswith("//"):
            raise ValueError(EXPECTED)
        try:
            parts = urlsplit(url)
            port = 0 if kind == "postgresql" else parts.port or 0  # libpq takes several hosts with ports
            options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise ValueError(f"{EXPECTED}, with characters such as @ : / in a password as %40 %3A %2F") from None
        found = cls(
            kind,
            unquote(parts.netloc.rpartition("@")[2] if "," in parts.netloc else parts.hostname or ""),
            port,
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            unquote(parts.path.removeprefix("/")),
            tuple(options),
        )
        found._check()
        return found

    def _check(self) -> None:
        if not self.database:
            raise ValueError("the name of a database at the end: //HOST/DATABASE")
        given = dict(self.options)
        if self.kind != "mysql":
            return
        if not given.keys() <= set(MYSQL_OPTIONS):  # not named: it may be part of a password with a question mark
            raise ValueError(f"after ? only {', '.join(MYSQL_OPTIONS)}")
        if given.get("verify", "full") not in VERIFY:
            raise ValueError(f"verify={' or '.join(VERIFY)}")

    def option(self, name: str) -> str:
        """The value of an option; empty: it has none."""
        return dict(self.options).get(name, "")

    @property
    def is_local(self) -> bool:
        """Whether the database is on this machine."""
        place = self.option("socket") or self.option("host") or self.host
        return place in LOCAL or place.startswith(("/", "@", "127."))

    @property
    def is_verified(self) -> bool:
        """Whether a connection has TLS with a verified certificate."""
        if self.kind == "postgresql":
            return self.option("sslmode") in ("", "verify-ca", "verify-full")
        return self.option("verify") != "none"


class SqlUrlKind(Kind):
    """The URL of a database, or nothing; passwords are never shown."""

    expected = EXPECTED

    def read(self, raw: object, *, is_text: bool) -> object:
        if not isinstance(raw, str):
            raise ValueError
        if raw:
            SqlUrl.parse(raw)
        return raw

    def write(self, value: object) -> str:
        return super().write(masked(str(value)))

    def shown(self, raw: object) -> str:
        return repr(masked(raw)) if isinstance(raw, str) else repr(raw)
