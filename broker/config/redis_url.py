"""Redis URLs, parsed into fields. Nothing here connects to Redis (`cluster/redis/clients.py` does) or shows a password.

    redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]
    rediss://...                                  the same over TLS
    unix://[[USER]:PASSWORD@]/PATH[?db=DB]
    redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/MASTER[/DB][?OPTION=VALUE&...]
    redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]   some servers of a Redis Cluster
    rediss+cluster://...                          the same over TLS

Options of all: password_file, in place of a password. With TLS: ca_file, cert_file, key_file, verify (full, ca =
any name, none). With Sentinel: tls (true or false: Redis and the Sentinels), sentinel_username,
sentinel_password. With redis+cluster: tls. USER, PASSWORD and VALUE may be percent-encoded. A password
file is read with the URL; the end of its line is not part of the password.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote

REDIS_PORT, SENTINEL_PORT = 6379, 26379
DB_MAX = 65_535
KINDS = {
    "redis": "tcp",
    "rediss": "tls",
    "unix": "unix",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
VERIFY = ("full", "ca", "none")
ALL_OPTIONS = {"password_file"}
TLS_OPTIONS = {"ca_file", "cert_file", "key_file", "verify", *ALL_OPTIONS}
SENTINEL_OPTIONS = {"tls", "sentinel_username", "sentinel_password", *TLS_OPTIONS}
OPTIONS = {
    "tcp": ALL_OPTIONS,
    "tls": TLS_OPTIONS,
    "unix": {"db", *ALL_OPTIONS},
    "sentinel": SENTINEL_OPTIONS,
    "cluster": {"tls", *TLS_OPTIONS},
}
EXPECTED = (
    "redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss:// for TLS, unix:///PATH, "
    "redis+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB], or redis+cluster://HOST:PORT,HOST:PORT"
)
MASK = "***"
USER_INFO = re.compile(r"^(.*?://)?([^:/@]*:)?.*@", re.S)
URL = re.compile(r"[a-z+]+://")
PASSWORD_OPTION = re.compile(r"(password=)[^&]*", re.I)


@dataclass(frozen=True)
class RedisUrl:
    """A parsed URL; `str` of it masks the passwords, `repr` leaves them out."""

    kind: str  # tcp, tls, unix, sentinel or cluster
    hosts: tuple[tuple[str, int], ...] = ()  # Redis, the Sentinels, or some servers of a Redis Cluster
    path: str = ""  # of a unix socket
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    master: str = ""  # its name at the Sentinels
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""  # empty: the system's authorities
    cert_file: str = ""
    key_file: str = ""
    verify: str = "full"

    @classmethod
    def parse(cls, url: str) -> Self:
        """The URL's fields.

        Raises:
            ValueError: the text completes the sentence "expected ...", and holds no password.
        """
        scheme, colon, rest = url.partition("://")
        if scheme not in KINDS or not colon or not url.isprintable() or " " in url:
            raise ValueError(EXPECTED)
        kind = KINDS[scheme]
        rest, _, query = rest.partition("?")
        user_info, _, place = rest.rpartition("@")
        username, _, password = user_info.partition(":")
        options = _options(query, OPTIONS[kind])
        password = _password(unquote(password), options.pop("password_file", ""))
        fields: dict[str, object] = {"username": unquote(username), "password": password, "kind": kind}
        if username and not password:
            raise ValueError("a password after the user name: USER:PASSWORD@, or :PASSWORD@ for the default user")
        if kind == "unix":
            if not place.startswith("/"):
                raise ValueError("the path of a socket: unix:///run/redis/redis.sock")
            return cls(path=unquote(place), db=_db(options.get("db", "")), **fields)  # type: ignore[arg-type]
        hosts, _, path = place.partition("/")
        if kind == "sentinel":
            master, _, path = path.partition("/")
            if not master:
                raise ValueError("the master's name after the Sentinels: redis+sentinel://HOST:PORT,HOST:PORT/MASTER")
            fields["master"] = unquote(master)
        elif kind == "cluster":
            if path:
                raise ValueError("no database at the end: a Redis Cluster has only one")
        elif "," in hosts:
            raise ValueError(
                "one HOST:PORT; several are for Sentinels, redis+sentinel://HOST:PORT,HOST:PORT/MASTER, "
                "and for a Redis Cluster, redis+cluster://HOST:PORT,HOST:PORT"
            )
        default_port = SENTINEL_PORT if kind == "sentinel" else REDIS_PORT
        fields["hosts"] = tuple(_host(host, default_port) for host in hosts.split(","))
        fields["tls"] = _boolean("tls", options.pop("tls", "false")) or scheme.startswith("rediss")
        if options.get("verify", "full") not in VERIFY:
            raise ValueError(f"verify to be one of {', '.join(VERIFY)}")
        if bool(options.get("cert_file")) != bool(options.get("key_file")):
            raise ValueError("cert_file and key_file together")
        return cls(db=_db(path), **fields, **options)  # type: ignore[arg-type]

    def __str__(self) -> str:
        user_info = f"{self.username}:{MASK}@" if self.password else ""
        if self.kind == "unix":
            return f"unix://{user_info}{self.path}{f'?db={self.db}' if self.db else ''}"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        scheme = "rediss" if self.tls else "redis"
        if self.kind == "cluster":
            return f"{scheme}+cluster://{user_info}{hosts}"
        if self.kind != "sentinel":
            return f"{scheme}://{user_info}{hosts}/{self.db}"
        return f"redis+sentinel://{user_info}{hosts}/{self.master}/{self.db}{'?tls=true' if self.tls else ''}"


def masked(url: str) -> str:
    """`url`, valid or not, with possible passwords replaced by stars; or several URLs with spaces between them."""
    words = url.split()
    if len(words) > 1 and all(URL.match(word) for word in words):  # else a space may be a part of a password
        return " ".join(map(masked, words))
    shown = USER_INFO.sub(lambda found: f"{found[1] or ''}{found[2] or ''}{MASK}@", url)
    return PASSWORD_OPTION.sub(rf"\1{MASK}", shown)


def _options(query: str, known: set[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if name not in known:
            # Not named: it may be part of a password with a question mark.
            raise ValueError(f"after ? only {', '.join(sorted(known))}")
        options[name] = unquote(value)
    return options


def _password(written: str, file: str) -> str:
    """The password: from the URL, or from the file."""
    if not file:
        return written
    if written:
        raise ValueError("a password or a password_file, not both")
    try:
        password = Path(file).read_text("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"a password_file that can be read, but {file}: {reason}") from None
    if not password:
        raise ValueError(f"a password in password_file, but {file} is empty")
    return password


def _db(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= DB_MAX and len(text) < 9):
        raise ValueError(f"the number of a database from 0 to {DB_MAX} at the end")
    return int(text)


def _host(text: str, default_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(default_port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address in brackets: redis://[::1]:6379")
    if not host:
        raise ValueError(EXPECTED)
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) <= 65_535):
        raise ValueError("a port from 1 to 65535 after the host")
    return host, int(port)


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{name} to be true or false")
    return text == "true"
