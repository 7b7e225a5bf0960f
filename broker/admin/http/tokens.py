"""The file of tokens, which open the HTTP API and the page: a line each, NAME:ROLE:SHA-256 of the token.

A token is 256 random bits, so that one round of SHA-256 keeps it: there is nothing to guess. The file is written by
`flockmq token`, for its owner only, and read again when it has changed. A line that can't be read lets nobody in by it,
and is told; a file without tokens closes what one without a file would leave open on this machine.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from broker import logs
from broker.errors import ConfigError

ROLES = ("read", "admin")  # the later may what the earlier may
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}", re.ASCII)
LINE = re.compile(rf"({NAME.pattern}):({'|'.join(ROLES)}):([0-9a-f]{{64}})", re.ASCII)
LOOK_SECONDS = 1.0  # between looks at whether the file has changed

log = logs.get("flockmq.http")


class Holder(NamedTuple):
    """Who has a token."""

    name: str
    role: str


def digest(token: str) -> str:
    """What the file holds of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def parse(text: str, where: str) -> dict[str, Holder]:
    """The tokens' holders, by digest.

    Raises:
        ConfigError: a line can't be read.
    """
    holders = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = LINE.fullmatch(line.strip())
        if found is None:
            raise ConfigError(
                f"{where}:{number} is no line of a token", "`flockmq token FILE NAME` writes them: NAME:ROLE:SHA-256"
            )
        holders[found[3]] = Holder(found[1], found[2])
    return holders


def add(path: Path, name: str, role: str) -> str:
    """Write a new token into the file, in place of an older one of the name; returns the token.

    Raises:
        ConfigError: the file can't be read or written.
    """
    token = secrets.token_urlsafe(32)
    try:
        known = parse(path.read_text("utf-8"), str(path)) if path.exists() else {}
        kept = {key: holder for key, holder in known.items() if holder.name != name}
        lines = [f"{holder.name}:{holder.role}:{key}\n" for key, holder in kept.items()]
        fresh = path.with_name(f"{path.name}.new-{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.writelines([*lines, f"{name}:{role}:{digest(token)}\n"])
        fresh.replace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of tokens {path} can't be written: {error}") from error
    return token


class Tokens:
    """Who may come in by token.

    Args:
        path: of the file; empty: there are no tokens, and nobody needs one on this machine.

    Raises:
        ConfigError: the file can't be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.wanted = bool(path)  # who has none is not let in
        self._holders: dict[str, Holder] = {}
        self._version: tuple[int, ...] = ()
        self._look_at = 0.0
        if path:
            self._read()

    def _read(self) -> None:
        self._look_at = time.monotonic() + LOOK_SECONDS
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
        """Whose token it is."""
        if self.wanted and time.monotonic() >= self._look_at:
            try:
                self._read()
            except ConfigError as error:
                self._holders = {}
                log.error("nobody is let in over HTTP", reason=error)
        wanted = digest(token)
        found = None
        for known, holder in self._holders.items():  # all of them, so that time tells nothing
            if hmac.compare_digest(known, wanted):
                found = holder
        return found
