"""The password file: a line `NAME:HASH` for each user; `flockmq passwd` writes it, Mosquitto's own files are read too.

A line with a fault is left out with a warning that has its number, and the other users are served, as Mosquitto serves
them. A line that was cut or badly edited is never a user without a password (CVE-2018-12551): its user is not served,
not even by an earlier line. Blank lines, and lines that begin with #, are comments; of two lines of a user the last one
counts. A file with such lines and without any user is not used: it is no password file, or a damaged one.

Writing replaces the file in one step, and keeps all lines of others as they are; only its owner may read it.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from .. import logs
from ..errors import ConfigError
from ..files import replace_file
from .acl_file import MARK, read_text
from .authenticator import Credentials, Identity, ReasonCode, Verdict
from .passwords import SCRAM_SCHEME, StoredHash, hash_password, parse_hash
from .rules import is_text
from .stored_user import StoredUser
from .verifier import Verifier

USERNAME = re.compile(r"(?![# ])[^:\x00-\x1f\x7f]{1,1000}(?<! )")
NAMES = "no colons, no control characters, no # at the front, no space at an end"
HINT = "`flockmq passwd FILE USER` writes such lines"
WRONG = Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="wrong password")

log = logs.get("flockmq.auth")


def log_fault(where: str, fault: str) -> None:
    """Log a line of a password file that has a fault."""
    log.warning("a line of the password file has a fault", line=where, reason=fault)


def read_users(path: str, warn: Callable[[str, str], object] = log_fault) -> dict[str, StoredHash]:
    """The users of a file.

    Args:
        path: of the file.
        warn: called with the place and the fault of a line.

    Raises:
        ConfigError: it can't be read, or no line of it names a user.
    """
    users: dict[str, StoredHash] = {}
    faults: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(map(_stripped, _lines(path)), 1):
        if not line or line.startswith("#"):
            continue
        where, name, fault = f"{path}:{number}", _name_in(line), ""
        users.pop(name, None)
        try:
            users[name] = _hash_in(name, line)
            fault = f"user {name!r} has a line before: this one counts" if name in seen else ""
        except ValueError as error:
            fault = f"{f'user {name!r} is not served' if name else 'the line is ignored'}: {error}"
        seen.add(name)
        if fault:
            faults.append(f"{where}: {fault}")
            warn(where, fault)
    if faults and not users:
        raise ConfigError(f"{faults[0]}; the file has no other user", HINT)
    return users


def set_user(path: str, name: str, stored: StoredHash | None) -> None:
    """Write the line of a user, or delete its lines (None). All other lines stay as they are.

    Raises:
        ConfigError: the file can't be read or written.
    """
    lines = _lines(path) if os.path.exists(path) else []
    at = next((number for number, line in enumerate(lines) if _name_in(_stripped(line)) == name), len(lines))
    new = [] if stored is None else [f"{name}:{stored.text}"]
    rest = (line for line in lines[at:] if _name_in(_stripped(line)) != name)
    try:
        replace_file(Path(path), "".join(f"{line}\n" for line in (*lines[:at], *new, *rest)))
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}", "check path and permissions") from error


def _lines(path: str) -> list[str]:
    """The lines of a file. Bytes that are not UTF-8 are surrogates, which no name has: comments may be of any code."""
    text = read_text(path, "auth.password_file", errors="surrogateescape")
    return text.removesuffix("\n").split("\n") if text else []


def _stripped(line: str) -> str:
    return line.removeprefix(MARK).strip(" \t\r")


def _name_in(line: str) -> str:
    """The name of the user whose line it is; empty: it is none's."""
    name, colon, _ = line.partition(":")
    name = name.rstrip(" \t")
    return name if colon and USERNAME.fullmatch(name) and is_text(name) else ""


def _hash_in(name: str, line: str) -> StoredHash:
    if not name:
        raise ValueError("expected NAME:HASH")
    return parse_hash(line.partition(":")[2].lstrip(" \t"))


def readable_by_others(path: str) -> bool:
    """Whether others than its owner and its group may read a file."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False


class PasswordFile:
    """Accepts users of a file.

    Args:
        path: of the file.
        verifier: compares passwords.

    Raises:
        ConfigError: the file can't be used.
    """

    name = "password file"

    def __init__(self, path: str, verifier: Verifier) -> None:
        self._users = read_users(path)
        self._verifier = verifier
        self.dummy_hash: StoredHash | None = (next(iter(self._users.values()), None) or hash_password(b"")).dummy()
        rounds = Counter(user.iterations for user in self._users.values() if user.scheme == SCRAM_SCHEME)
        self._usual_rounds = rounds.most_common(1)[0][0] if rounds else None
        if readable_by_others(path):
            log.warning("the password file can be read by every user of this machine: chmod 600 it", path=path)

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict] | None:
        """None: the user is unknown."""
        stored = self._users.get(credentials.username or "")
        if stored is not None and self._verifier.remembers(stored, credentials.password):
            return _accepted(credentials, stored)
        return None if stored is None else self._verify(credentials, stored)

    async def _verify(self, credentials: Credentials, stored: StoredHash) -> Verdict:
        if await self._verifier.matches(stored, credentials.password):
            return _accepted(credentials, stored)
        return WRONG

    async def find_user(self, username: str) -> StoredUser | None:
        """The user; None: there is none."""
        stored = self._users.get(username)
        if stored is None:
            return None
        return StoredUser(stored, Identity(username, method=self.name, credential=stored.fingerprint))

    def usual_rounds(self) -> int | None:
        """Rounds that most of its SCRAM credentials have."""
        return self._usual_rounds

    def renew(self, identity: Identity) -> Identity | None:
        """The identity with the present credentials of the user; None: the user was removed."""
        stored = self._users.get(identity.username or "")
        return None if stored is None else identity.replace(credential=stored.fingerprint)


def _accepted(credentials: Credentials, stored: StoredHash) -> Verdict:
    return Verdict(ReasonCode.ACCEPTED, Identity(credentials.username, credential=stored.fingerprint))
