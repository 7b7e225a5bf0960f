"""The password file: a line `NAME:HASH` for each user; `flockmq passwd` writes it, Mosquitto's own files are read too.

An invalid line, a blank one too, makes the file unusable, and the error has its number: a line that was cut or badly
edited is never a user without a password (CVE-2018-12551). Lines that begin with # are comments. Writing replaces the
file in one step; only its owner may read it.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from pathlib import Path

from broker import logs
from broker.auth.acl_file import read_text
from broker.auth.authenticator import Credentials, Identity, ReasonCode, Verdict
from broker.auth.passwords import SCRAM_SCHEME, StoredHash, hash_password, parse_hash
from broker.auth.stored_user import StoredUser
from broker.auth.verifier import Verifier
from broker.errors import ConfigError
from broker.files import replace_file

USERNAME = re.compile(r"(?!#)[^:\x00-\x1f\x7f]{1,1000}")
HINT = "`flockmq passwd FILE USER` writes such lines"
WRONG = Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="wrong password")

log = logs.get("flockmq.auth")


def read_users(path: str) -> dict[str, StoredHash]:
    """The users of a file.

    Raises:
        ConfigError: it can't be read, or a line of it.
    """
    lines = read_text(path, "auth.password_file").split("\n")
    if lines[-1] == "":
        lines.pop()
    users: dict[str, StoredHash] = {}
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            continue
        name, colon, text = line.rstrip("\r").partition(":")
        try:
            if not colon or not USERNAME.fullmatch(name):
                raise ValueError("expected NAME:HASH")
            if name in users:
                raise ValueError("the user stands there twice")
            users[name] = parse_hash(text)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}", HINT) from None
    return users


def write_users(path: str, users: Mapping[str, StoredHash]) -> None:
    """Replace the file in one step; only its owner may read it.

    Raises:
        ConfigError: it can't be written.
    """
    try:
        replace_file(Path(path), "".join(f"{name}:{stored.text}\n" for name, stored in sorted(users.items())))
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}", "check path and permissions") from error


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
        return None if stored is None else replace(identity, credential=stored.fingerprint)


def _accepted(credentials: Credentials, stored: StoredHash) -> Verdict:
    return Verdict(ReasonCode.ACCEPTED, Identity(credentials.username, credential=stored.fingerprint))
