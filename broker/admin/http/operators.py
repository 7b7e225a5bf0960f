"""Operators, their logins, and API keys: hidden messages, so that the store and all nodes of a cluster have them."""

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from aiohttp import web

from ... import logs
from ...auth.acl_file import read_text
from ...auth.passwords import StoredHash, hash_password, parse_hash, usual_dummy
from ...auth.work_pool import Busy, WorkPool
from ...core.hidden_messages import HiddenMessages
from ...errors import ConfigError
from ...rpc.node_view import NodeView
from .problems import Problem
from .tokens import ADMIN, KEY, LOGIN, ROLES, Holder

KEY_PREFIX = "flockmq_"  # of API keys: secret scanners find them
FIRST = "admin"  # name of the first operator
MIN_PASSWORD = 12  # characters
MAX_LOGINS = 20  # of one operator
ID_BYTES, SECRET_BYTES = 8, 32
PASSWORD, OIDC = "password", "oidc"
THREADS, MAX_WAITING = 1, 40  # passwords that are hashed or verified, and wait: a second of work

log = logs.get("flockmq.http")


@dataclass(frozen=True)
class Operator:
    """A person who manages the broker."""

    name: str
    role: str
    tenant: str  # empty: the whole broker
    hash: str  # of the password
    disabled: bool
    since: float  # seconds since 1970

    @property
    def stored(self) -> StoredHash:
        """The hash to verify."""
        return parse_hash(self.hash)

    @property
    def is_admin(self) -> bool:
        """Whether the operator may do everything."""
        return self.role == ADMIN and not self.tenant and not self.disabled


@dataclass(frozen=True)
class Login:
    """An operator who has logged in, in a browser."""

    name: str
    method: str  # PASSWORD or OIDC
    role: str  # of OIDC: as the provider's claims give it
    tenant: str  # likewise
    credential: str  # digest of the hash that was verified: another password ends the login
    since: float  # seconds since 1970
    until: float


@dataclass(frozen=True)
class ApiKey:
    """A key for a program."""

    id: str
    name: str
    role: str
    tenant: str
    digest: str  # SHA-256 of the key
    scopes: list[str] = field(default_factory=list)  # names of operations; empty: all of the role
    until: float | None = None  # seconds since 1970; None: forever
    since: float = 0.0
    by: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.until is not None and time.time() >= self.until


T = TypeVar("T", Operator, Login, ApiKey)
R = TypeVar("R")


class OperatorStore:
    """Reads and writes.

    Args:
        node: of the store.

    Raises:
        ConfigError: the file of the first password can't be read, or it is too short.
    """

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._first_password = _first_password(node.config.http.first_password_file)
        self._pool = WorkPool("operators", THREADS, MAX_WAITING)

    async def close(self, _: web.Application) -> None:
        """End the thread."""
        self._pool.close()

    # ---- passwords ----

    async def hash(self, password: str) -> str:
        """The hash of a password, as it is stored. Raises Problem: too many wait."""
        return (await self._run(hash_password, _encoded(password))).text

    async def matches(self, stored: StoredHash | None, password: str) -> bool:
        """Whether the hash is of the password; None takes as long as a hash. Raises Problem: too many wait."""
        return await self._run(partial(_matches, stored), _encoded(password))

    async def _run(self, work: Callable[[bytes], R], password: bytes) -> R:
        try:
            return await self._pool.run(work, password)
        except Busy:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many passwords wait", Retry_After="1") from None

    # ---- operators ----

    async def first(self, name: str, password: str) -> Operator | None:
        """Make the first operator if name and password are as configured, and return it; None: they are not."""
        given = hmac.compare_digest(_encoded(password), _encoded(self._first_password))
        if not self._first_password or not given or name != FIRST or self.operators():
            return None
        operator = Operator(FIRST, ADMIN, "", await self.hash(password), False, round(time.time(), 3))
        await self.put_operator(operator)
        return operator

    def operator(self, name: str) -> Operator | None:
        """The operator of this name."""
        return self._find("operators", _level(name), Operator)

    def operators(self) -> list[Operator]:
        """All, by name."""
        return sorted(self._all("operators", Operator), key=lambda each: each.name)

    async def put_operator(self, operator: Operator) -> None:
        """Store an operator; all nodes have the change when this returns."""
        await self._put("operators", _level(operator.name), asdict(operator))

    async def remove_operator(self, name: str) -> None:
        """Remove an operator; the logins end with it."""
        await self._put("operators", _level(name), None)

    @property
    def is_used(self) -> bool:
        """Whether there is an operator, or may be one: then requests need credentials."""
        return bool(self._first_password) or next(self._all("operators", Operator), None) is not None  # reads one

    # ---- logins ----

    async def add_login(self, login: Login) -> str:
        """Store a login, in place of the oldest one of an operator with MAX_LOGINS; returns the browser's secret."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        for name in self._logins_of(login.name)[: -MAX_LOGINS + 1 or None]:
            self._messages("logins").remove(name)
        await self._put("logins", _digest(secret), asdict(login), seconds=int(login.until - login.since) + 1)
        return secret

    def _logins_of(self, operator: str) -> list[str]:
        """The names of the hidden messages of an operator's logins, the oldest first."""
        kept = self._messages("logins").all().items()
        known = [(name, _parsed("logins", data, Login)) for name, data in kept]
        own = [(login.since, name) for name, login in known if login is not None and login.name == operator]
        return [name for _, name in sorted(own)]

    async def remove_login(self, secret: str) -> None:
        """End a login."""
        if self._find("logins", _digest(secret), Login) is not None:
            await self._put("logins", _digest(secret), None)

    def login(self, secret: str) -> Holder | None:
        """The holder of a login that is valid now."""
        found = self._find("logins", _digest(secret), Login)
        if found is None or time.time() >= found.until:
            return None
        if found.method == OIDC:
            return Holder(found.name, found.role, LOGIN, found.tenant)
        operator = self.operator(found.name)
        if operator is None or operator.disabled or credential_of(operator) != found.credential:
            return None
        return Holder(operator.name, operator.role, LOGIN, operator.tenant)

    # ---- keys ----

    async def add_key(self, **values: Any) -> tuple[ApiKey, str]:
        """Make a key with these values of ApiKey; returns it, and its text, which is not stored."""
        number = secrets.token_hex(ID_BYTES)
        text = f"{KEY_PREFIX}{number}_{secrets.token_urlsafe(SECRET_BYTES)}"
        key = ApiKey(id=number, digest=_digest(text), since=round(time.time(), 3), **values)
        await self._put("api_keys", number, asdict(key))
        return key, text

    def api_keys(self) -> list[ApiKey]:
        """All, by name, also those that have ended."""
        return sorted(self._all("api_keys", ApiKey), key=lambda each: (each.name, each.since))

    async def remove_key(self, number: str) -> ApiKey | None:
        """Remove a key; None: there was none."""
        found = self._find("api_keys", number, ApiKey) if number.isalnum() else None
        if found is not None:
            await self._put("api_keys", number, None)
        return found

    def key(self, text: str) -> Holder | None:
        """The holder of a key that is valid now."""
        number = text.removeprefix(KEY_PREFIX).partition("_")[0]
        found = self._find("api_keys", number, ApiKey) if number.isalnum() else None
        if found is None or not hmac.compare_digest(found.digest, _digest(text)) or found.is_over:
            return None
        return Holder(found.name, found.role, KEY, found.tenant, frozenset(found.scopes))

    # ---- hidden messages ----

    def _messages(self, kind: str) -> HiddenMessages:
        return HiddenMessages(self._node.broker.data_plane, kind)

    def _find(self, kind: str, name: str, cls: type[T]) -> T | None:
        data = self._messages(kind).find(name)
        return None if data is None else _parsed(kind, data, cls)

    def _all(self, kind: str, cls: type[T]) -> Iterator[T]:
        for _, data in self._messages(kind).each():
            found = _parsed(kind, data, cls)
            if found is not None:
                yield found

    async def _put(self, kind: str, name: str, value: dict[str, Any] | None, *, seconds: int = 0) -> None:
        stored = asyncio.Event()
        data = b"" if value is None else json.dumps(value).encode()
        self._messages(kind).put(name, data, seconds=seconds, on_stored=stored.set)
        await stored.wait()
        await self._node.broker.coordinator.nodes.call_all("reach", {})  # follows the change to each node


def _first_password(path: str) -> str:
    """The first line of a file; empty: none is configured."""
    if not path:
        return ""
    password = read_text(path, "http.first_password_file").partition("\n")[0].rstrip("\r")
    if len(password) < MIN_PASSWORD:
        raise ConfigError(f"http.first_password_file = {path!r}: its password has less than {MIN_PASSWORD} characters")
    return password


def credential_of(operator: Operator) -> str:
    """A digest of the stored hash: it changes with the password."""
    return hashlib.sha256(operator.hash.encode()).hexdigest()


def _parsed(kind: str, data: bytes, cls: type[T]) -> T | None:
    try:
        found = cls(**json.loads(data))
        if found.role not in ROLES:
            raise ValueError(f"unknown role {found.role!r}")
    except (ValueError, TypeError) as error:
        log.error("stored access of an operator is unreadable", kind=kind, reason=error)
        return None
    return found


def _matches(stored: StoredHash | None, password: bytes) -> bool:
    dummy = usual_dummy()  # made at the first login, whether its name is known or not
    return (dummy if stored is None else stored).matches(password)


def _encoded(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _level(name: str) -> str:
    """A name as one level of a topic name: any characters are allowed in it."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
