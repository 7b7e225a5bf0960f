"""Users of a cluster, stored for all its nodes: password hash, access rules, and whether they are disabled.

A user is JSON: {"hash": "$argon2id$...", "rules": ["topic read a/#", ...] or null, "disabled": false}. This
module reads it; `cluster/replication/users.py` gets it and its changes from Redis; `flockmq users` writes it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple, Protocol

from .. import logs
from .authenticator import Credentials, Identity, ReasonCode, Verdict
from .passwords import StoredHash, hash_password, parse_hash
from .rules import Rules, parse_rules, read_json
from .stored_user import Away as Away
from .stored_user import StoredUser
from .verifier import Verifier

WRONG = Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="wrong password")
DISABLED = Verdict(ReasonCode.NOT_AUTHORIZED, reason="its user is disabled")
AWAY = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="the users can't be looked up for now")

log = logs.get("flockmq.auth")


class User(NamedTuple):
    """A stored user."""

    stored: StoredHash
    rules: Rules | None
    disabled: bool

    @classmethod
    def parse(cls, data: bytes) -> "User":
        """Raises ValueError: it is not a user as `flockmq users` writes it."""
        document = read_json(data)
        if not isinstance(document, dict) or not isinstance(document.get("disabled", False), bool):
            raise ValueError('expected {"hash": "...", "rules": [...], "disabled": false}')
        rules = parse_rules(document.get("rules"))
        return cls(parse_hash(str(document.get("hash"))), rules, document.get("disabled", False))

    def identity(self, username: str) -> Identity:
        """The identity of clients with its password."""
        return Identity(username, rules=self.rules, credential=self.stored.fingerprint)


class Source(Protocol):
    """A store of users."""

    def attach(self, changed: Callable[[set[str]], object], connected: Callable[[], set[str]]) -> None:
        """Call `changed` with the names of users that have changed; `connected` returns those with a connection."""

    async def find(self, username: str) -> bytes | None:
        """The JSON of a user; None: there is none. Raises Away."""

    def known(self, username: str) -> bytes | None:
        """As `find`, for users that were found before; None for others."""


class ClusterUsers:
    """Accepts users of the cluster.

    Args:
        source: gives the source; None: there is none.
        verifier: compares passwords.
    """

    name = "redis"

    def __init__(self, source: Callable[[], Source | None], verifier: Verifier) -> None:
        self._source = source
        self._verifier = verifier
        self.dummy_hash: StoredHash | None = usual_hash()

    def authenticate(self, credentials: Credentials) -> Awaitable[Verdict | None] | None:
        """None: the user is unknown."""
        return self._authenticate(credentials, credentials.username) if credentials.username else None

    async def _authenticate(self, credentials: Credentials, username: str) -> Verdict | None:
        try:
            found = await self._find(username)
        except Away:
            return AWAY
        if found is None:
            return None
        source, data, user = found
        if not await self._verifier.matches(user.stored, credentials.password):
            return WRONG
        if source.known(username) != data:  # it was changed
            return AWAY
        return DISABLED if user.disabled else Verdict(ReasonCode.ACCEPTED, user.identity(username))

    async def find_user(self, username: str) -> StoredUser | None:
        """The user; None: there is none.

        Raises:
            Away: it can't be looked up for now, or the stored user is unreadable.
        """
        found = await self._find(username)
        if found is None:
            return None
        _, _, user = found
        return StoredUser(user.stored, replace(user.identity(username), method=self.name), user.disabled)

    async def _find(self, username: str) -> tuple[Source, bytes, User] | None:
        """The source, and the user as it has it; None: there is none. Raises Away as `find_user`."""
        source = self._source()
        if source is None:
            raise Away
        data = await source.find(username)
        if data is None:
            return None
        try:
            return source, data, User.parse(data)
        except ValueError as error:
            log.error("a stored user is invalid", username=username, error=error)
            raise Away from error

    def usual_rounds(self) -> int | None:
        """Unknown: the users are not here."""
        return None

    def renew(self, identity: Identity) -> Identity | None:
        """The identity with the present rules and credentials of the user."""
        source = self._source()
        data = source.known(identity.username or "") if source is not None else None
        try:
            user = None if data is None else User.parse(data)
        except ValueError:
            return None
        if user is None or user.disabled:
            return None
        return replace(identity, rules=user.rules, credential=user.stored.fingerprint)


@cache
def usual_hash() -> StoredHash:
    """A hash that no password matches, to verify for users that are unknown."""
    return hash_password(b"").dummy()
