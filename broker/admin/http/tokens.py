"""The file of tokens, which open the HTTP API and the page: a line each, NAME:ROLE:SHA-256 of the token.

A fourth part, :TENANT, makes it a token of a tenant: it opens the API for the tenant's part.

A token is 256 random bits, so one round of SHA-256 protects it: it can't be guessed. `flockmq token` writes the file,
for its owner only; the node reloads it when it has changed. An invalid line is logged and makes all tokens invalid. A
file without tokens refuses all requests, which a node without a file would accept from this machine.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from ... import logs
from ...auth.authenticator import Identity
from ...config.tenants import is_tenant
from ...errors import ConfigError, reason_of
from ...files import replace_file

VIEWER, OPERATOR, ADMIN = ROLES = ("viewer", "operator", "admin")  # each includes all before it
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}", re.ASCII)
LINE = re.compile(rf"({NAME.pattern}):({'|'.join(ROLES)}):([0-9a-f]{{64}})(?::(.+))?", re.ASCII)
LOGIN, KEY, TOKEN, PASSWORD = "login", "key", "token", "password"  # kinds of credentials
CHECK_SECONDS = 1.0  # between checks of the file

log = logs.get("flockmq.http")


class Holder(NamedTuple):
    """The sender of a request: the holder of a token, or an MQTT client where these are served, too."""

    name: str
    role: str
    credential: str  # LOGIN, KEY, TOKEN, or PASSWORD of an MQTT client; empty: the request needs none
    tenant: str = ""  # that the token is for; empty: for the whole broker
    scopes: frozenset[str] = frozenset()  # operations that an API key opens; empty: all of its role
    identity: Identity | None = (
        None  # of an MQTT client, which has no token; it gets only messages that its rights allow
    )

    def has_role(self, role: str) -> bool:
        """Whether the holder's role is this one, or includes it."""
        return ROLES.index(self.role) >= ROLES.index(role)


def digest(token: str) -> str:
    """The hash of a token, as in the file."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def parse(text: str, where: str) -> dict[str, Holder]:
    """The tokens' holders, by digest.

    Raises:
        ConfigError: a line can't be read.
    """
    holders = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = LINE.fullmatch(line.strip())
        if found is None or (found[4] and not is_tenant(found[4])):
            raise ConfigError(
                f"{where}:{number} is not a token line",
                "`flockmq token FILE NAME` writes them: NAME:ROLE:SHA-256, and :TENANT for one of a tenant",
            )
        holders[found[3]] = Holder(found[1], found[2], TOKEN, found[4] or "")
    return holders


def add(path: Path, name: str, role: str, tenant: str = "") -> str:
    """Write a new token into the file, in place of an older one of the name; returns the token. Other lines stay.

    Raises:
        ConfigError: the file can't be read or written.
    """
    token = secrets.token_urlsafe(32)
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        parse(text, str(path))
        lines = [f"{line}\n" for line in text.splitlines() if line.strip().partition(":")[0] != name]
        replace_file(path, "".join([*lines, _line(Holder(name, role, TOKEN, tenant), digest(token))]))
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error)
        raise ConfigError(
            f"the file of tokens {path} can't be written: {reason}", "check path and permissions"
        ) from error
    return token


def _line(holder: Holder, key: str) -> str:
    return f"{holder.name}:{holder.role}:{key}{holder.tenant and ':'}{holder.tenant}\n"


class Tokens:
    """The tokens of a node.

    Args:
        path: of the file; empty: there are none, and this machine needs none.

    Raises:
        ConfigError: the file can't be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.wanted = bool(path)  # requests need one
        self._holders: dict[str, Holder] = {}
        self._version: tuple[int, ...] = ()
        self._check_at = 0.0
        if path:
            self._read()

    def _read(self) -> None:
        self._check_at = time.monotonic() + CHECK_SECONDS
        try:
            found = os.stat(self._path)
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._version:
                self._holders = parse(Path(self._path).read_text("utf-8"), self._path)
                self._version = version
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"http.tokens_file = {self._path} can't be read: {error}", "`flockmq token FILE NAME` makes one"
            ) from error

    def holder(self, token: str) -> Holder | None:
        """The holder of a token."""
        if self.wanted and time.monotonic() >= self._check_at:
            try:
                self._read()
            except ConfigError as error:
                self._holders = {}
                log.error("invalid file of tokens: all requests over HTTP are refused", reason=error)
        wanted = digest(token)
        found = None
        for known, holder in self._holders.items():  # all of them, in constant time
            if hmac.compare_digest(known, wanted):
                found = holder
        return found
