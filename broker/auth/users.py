"""Users in the store of the broker: password hash, access rules, roles, and whether they are disabled.

A user is JSON: {"hash": "$argon2id$...", "rules": ["topic read a/#", ...] or null, "roles": ["reader", ...],
"disabled": false}. A node reads a user when it logs in, and caches it. The cache is exact while the store is connected:
it gets replies and reports of changes in the order of the store. During an outage only cached users may log in. When
the store is back, the node reads all cached users again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .. import logs
from .access_store import AccessStore, Documents, Kind
from .authenticator import Credentials, Identity, ReasonCode, Verdict
from .passwords import Dummies, StoredHash, parse_hash
from .roles import USERS
from .rules import SHARED, Rules, parse_rules, read_json
from .stored_user import Away as Away
from .stored_user import StoredUser
from .verifier import Verifier

MAX_CACHED = 100_000  # users without a connection; those with one stay
AT_ONCE = 500  # users read again at a time
WRONG = Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="wrong password")
DISABLED = Verdict(ReasonCode.NOT_AUTHORIZED, reason="its user is disabled")
AWAY = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="the users can't be looked up for now")

log = logs.get("flockmq.auth")


@dataclass(frozen=True, slots=True)
class User:
    """A stored user."""

    hash: str  # valid
    fingerprint: bytes  # of the hash
    rules: Rules | None
    roles: tuple[str, ...]
    disabled: bool

    @classmethod
    def parse(cls, data: bytes) -> "User":
        """Raises ValueError: it is no user."""
        document = read_json(data)
        if not isinstance(document, dict) or not isinstance(document.get("disabled", False), bool):
            raise ValueError('expected {"hash": "...", "rules": [...], "roles": [...], "disabled": false}')
        roles = document.get("roles", [])
        if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
            raise ValueError("roles: expected a list of texts")
        stored = parse_hash(str(document.get("hash")))
        return cls(
            stored.text,
            stored.fingerprint,
            _rules(document.get("rules")),
            tuple(roles),
            document.get("disabled", False),
        )

    @property
    def stored(self) -> StoredHash:
        """The password hash."""
        return parse_hash(self.hash)

    def identity(self, username: str) -> Identity:
        """The identity of clients with its password."""
        return Identity(username, rules=self.rules, roles=self.roles, credential=self.fingerprint)


@lru_cache(SHARED)
def _shared_rules(lines: tuple[str, ...]) -> Rules:
    return parse_rules(list(lines)) or ()


def _rules(lines: Any) -> Rules | None:
    """Rules as JSON has them; equal ones of several users are one object."""
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return _shared_rules(tuple(lines))
    return parse_rules(lines)


class Users:
    """The users that a node has read.

    Args:
        store: of users.
        on_changed: called with the names of cached users that have changed.
        connected: returns the names of users that have a connection: they stay in the cache, since a change of an
            absent user is not noticed.
    """

    def __init__(
        self, store: AccessStore, on_changed: Callable[[set[str]], object], connected: Callable[[], set[str]]
    ) -> None:
        self._store = store
        self._on_changed = on_changed
        self._connected = connected
        self._known: OrderedDict[str, User | None] = OrderedDict()  # least recently used first; None: it is unreadable
        self._room = MAX_CACHED
        self.number = 0  # of changes

    def known(self, username: str) -> User | None:
        """A cached user; None: it is not cached, or unreadable."""
        return self._known.get(username)

    async def find(self, username: str) -> User | None:
        """A user; None: there is none.

        Raises:
            Away: it can't be looked up for now, or the stored document is unreadable.
        """
        if username not in self._known:
            if not self._store.connected:
                raise Away
            found: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()

            def read(documents: list[bytes | None] | None) -> None:
                if documents is not None:
                    self._learn(username, documents[0])
                if not found.done():
                    found.set_result(None if documents is None else documents[0] is not None)

            self._store.read(Kind.USER, [username], read)
            is_there = await found
            if is_there is None:
                raise Away
            if not is_there:
                return None
        if username in self._known:
            self._known.move_to_end(username)
        user = self._known.get(username)
        if user is None:  # unreadable, or removed since
            raise Away
        return user

    def _learn(self, username: str, data: bytes | None) -> bool:
        """Cache a user; returns whether that is a change."""
        user = None if data is None else parse(username, data)
        changed = username not in self._known or self._known[username] != user or user is None
        self._known.pop(username, None)
        if data is not None:
            self._known[username] = user
            if len(self._known) > self._room:
                self._trim()
        return changed

    def _trim(self) -> None:
        """Forget the users without a connection that logged in longest ago."""
        connected = self._connected()
        absent = [name for name in self._known if name not in connected]
        for name in absent[: max(len(absent) - MAX_CACHED, 0)]:
            del self._known[name]
        self._room = len(self._known) + MAX_CACHED // 10  # so that not each new user costs a search

    def changed(self, documents: Documents) -> None:
        """Users have changed."""
        self._apply({name: data for name, data in documents.items() if name in self._known})

    def read_again(self) -> None:
        """Read all cached users again: reports of changes were lost."""
        names = list(self._known)
        for start in range(0, len(names), AT_ONCE):
            self._read(names[start : start + AT_ONCE])

    def _read(self, names: list[str]) -> None:
        def read(documents: list[bytes | None] | None) -> None:
            if documents is not None:  # else this is called again when the store is back
                self._apply(dict(zip(names, documents, strict=True)))

        self._store.read(Kind.USER, names, read)

    def _apply(self, documents: Documents) -> None:
        changed = {name for name, data in documents.items() if self._learn(name, data)}
        if changed:
            self.number += 1
            self._on_changed(changed)


def parse(username: str, data: bytes) -> User | None:
    """A stored user; None, with an error in the log: the document is unreadable."""
    try:
        return User.parse(data)
    except ValueError as error:
        log.error("a stored user is invalid", username=username, error=error)
        return None


class StoredUsers:
    """Accepts the users of the store.

    Args:
        users: gives the users.
        verifier: compares passwords.
    """

    name = USERS

    def __init__(self, users: Callable[[], Users], verifier: Verifier) -> None:
        self._users = users
        self._verifier = verifier
        self._dummies = Dummies()

    @property
    def dummy_hash(self) -> StoredHash | None:
        """The hash to verify for an unknown user."""
        return self._dummies.present

    def authenticate(self, credentials: Credentials) -> Awaitable[Verdict | None] | None:
        """None: the user is unknown."""
        return self._authenticate(credentials, credentials.username) if credentials.username else None

    async def _authenticate(self, credentials: Credentials, username: str) -> Verdict | None:
        users = self._users()
        try:
            user = await users.find(username)
        except Away:
            return AWAY
        if user is None:
            return None
        stored = user.stored
        if stored.cost != self._dummies.present.cost:
            await asyncio.to_thread(self._dummies.follow, stored)
        if not await self._verifier.matches(stored, credentials.password):
            return WRONG
        if users.known(username) != user:  # it was changed
            return AWAY
        return DISABLED if user.disabled else Verdict(ReasonCode.ACCEPTED, user.identity(username))

    async def find_user(self, username: str) -> StoredUser | None:
        """The user; None: there is none. Raises Away as `Users.find`."""
        user = await self._users().find(username)
        if user is None:
            return None
        return StoredUser(user.stored, user.identity(username).replace(method=self.name), user.disabled)

    def usual_rounds(self) -> int | None:
        """Unknown: the users are not here."""
        return None

    def renew(self, identity: Identity) -> Identity | None:
        """The identity with the present rules, roles and credentials of the user."""
        user = self._users().known(identity.username or "")
        if user is None or user.disabled:
            return None
        return identity.renewed(user.rules, user.roles, user.fingerprint)
