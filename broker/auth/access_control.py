"""Access control of a node: the authentication chains of its listeners, and the files behind them.

Built from the configuration at the start, at a reload, and when a file has changed. An invalid file prevents the start.
Later the previous state stays in force, with an error in the log: the node never becomes more open by mistake.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TypeVar

from ..._speedups.protocol.close_reasons import USER_REMOVED, CloseReason
from .. import logs
from ..config.auth_config import AuthConfig
from ..config.kinds import FilePath
from ..config.link import LISTENER
from ..config.schema import Config, ListenerConfig
from ..core import tenants
from ..errors import ConfigError
from . import listener_exposure
from .acl_file import AclFile
from .authenticator import NO_RIGHTS, Challenge, Credentials, Exchange, Identity, ReasonCode, Step, Verdict
from .author import pack_author, parse_author
from .chain import Chain, Method, Renewal, identity_of
from .chain_builder import ChainBuilder
from .penalties import Penalties
from .right_check import Action, Decision
from .roles import USERS, Roles
from .stored_user import StoredUser
from .tenants import Tenants
from .users import Users
from .verifier import Proofs
from .work_pool import Busy

TOO_MANY = Verdict(ReasonCode.CONNECTION_RATE_EXCEEDED, reason="its address has sent wrong credentials too often")
BUSY = Verdict(ReasonCode.SERVER_BUSY, reason="too many clients wait to be authenticated")
NO_LISTENER = Decision(False, "there is no such listener")
SECRET_BYTES = 32
MAX_KNOWN = 256  # identities that a walk remembers: forgetting them takes no time that anyone notices
FILES = tuple(key.name for key in fields(AuthConfig) if isinstance(key.metadata["kind"], FilePath))

S = TypeVar("S", Verdict, Step)

log = logs.get("flockmq.auth")


class GuardedExchange:
    """An exchange whose steps are guarded.

    Args:
        exchange: of a method.
        guard: calls a step.
    """

    def __init__(
        self, exchange: Exchange, guard: Callable[[Callable[[], Step | Awaitable[Step]]], Step | Awaitable[Step]]
    ) -> None:
        self._exchange = exchange
        self._guard = guard

    def start(self, client: Credentials, data: bytes) -> Step | Awaitable[Step]:
        return self._guard(partial(self._exchange.start, client, data))

    def step(self, data: bytes) -> Step | Awaitable[Step]:
        return self._guard(partial(self._exchange.step, data))


class AccessControl:
    """The Authenticator of a node.

    Args:
        config: of the node.
        users: returns the users that the node has read.
        first: authentication methods before the configured methods, on all listeners.
        secret: returns a secret of the node; by default one that a restart changes.
        proofs: returns where proofs of logins are kept; None: nowhere.

    Raises:
        ConfigError: the node would be open to the network by mistake, or a file can't be used.
    """

    def __init__(
        self,
        config: Config,
        users: Callable[[], Users],
        first: Sequence[Method] = (),
        secret: Callable[[], bytes] | None = None,
        proofs: Callable[[], Proofs | None] = lambda: None,
    ) -> None:
        self._secret = secret or partial(bytes, secrets.token_bytes(SECRET_BYTES))
        self._users = users
        self._builder = ChainBuilder(users, proofs, self._secret)
        self._penalties = Penalties()
        self.roles = Roles()
        self._first = tuple(first)
        self._chains: dict[str, Chain] = {}
        self._configured = 0  # times
        self._files: dict[str, object] = {}  # path -> stamp of the file
        self.configure(config)

    def configure(self, config: Config) -> list[str]:
        """Apply a configuration, wholly or not at all.

        Returns:
            The paths of files with users or rules that have changed, or are new.

        Raises:
            ConfigError: as for the class; then nothing has changed.
        """
        listener_exposure.check(config, asked=bool(self._first))
        listeners = config.listeners
        files = {path: _stamp(path) for listener in listeners for path in _paths(listener.auth)}
        assigned = Tenants(config.tenants)
        claims = {rule.claim_name for rule in config.tenants if rule.claim}
        chains = {listener.name: self._chain(listener, assigned, claims) for listener in listeners}
        changed = [path for path, stamp in files.items() if self._files.get(path) != stamp]
        _check_tenants(config, chains)
        self._config, self._chains, self._files = config, chains, files
        self._tenants = assigned
        self._builder.drop_unused()
        self._configured += 1
        self._builder.verifier.configure(config.auth.remember, config.auth.remember_stored)
        self._penalties.configure(config.auth.failure_delay)
        return changed

    def _chain(self, listener: ListenerConfig, assigned: Tenants, claims: set[str]) -> Chain:
        auth = listener.auth
        methods = [*self._first, *self._builder.of(listener, claims)]
        acl = AclFile(auth.acl_file) if auth.acl_file else None
        anonymous = auth.allow_anonymous or not methods
        return Chain(
            methods,
            self._builder.verifier,
            anonymous=anonymous,
            acl=acl,
            allowed=auth.methods,
            close_on_password_change=auth.close_on_password_change,
            tenants=assigned,
            roles=self.roles,
            name=listener.name,
        )

    def follow_files(self) -> list[str]:
        """Read the files again if one of them has changed; returns the paths of changed files that were applied."""
        found = {path: _stamp(path) for path in self._files}
        if found == self._files:
            return []
        try:
            changed = self.configure(self._config)
        except ConfigError as error:
            self._files = found  # logged once
            log.error("reading users and access rules failed; the previous ones stay in force", error=error)
            return []
        log.info("users and access rules were reloaded", files=", ".join(changed))
        return changed

    # ---- a CONNECT ----

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        chain = self._chains[self._tenants.auth_for(credentials)]
        answer = chain.authenticate(credentials)
        if isinstance(answer, Verdict):
            return answer
        if not self._penalties.begin(credentials.address):
            answer.close()
            return TOO_MANY
        return self._attempt(credentials, chain, answer)

    async def _attempt(self, credentials: Credentials, chain: Chain, answer: Awaitable[S]) -> S | Verdict:
        """Wait for an attempt that has begun, and end it."""
        try:
            step = await answer
            if is_wrong(step):
                await self._delay(credentials.address)
            return self._present(credentials, chain, step)
        except Busy:
            return BUSY
        finally:
            self._penalties.end(credentials.address)

    def _present(self, credentials: Credentials, chain: Chain, step: S) -> S | Verdict:
        """A verdict with the present rights: rules and users may have changed."""
        if isinstance(step, Challenge) or step.code != ReasonCode.ACCEPTED:
            return step
        if self._chains.get(chain.name) is chain:
            return step
        found = self.renewed(step.identity, credentials.client_id)
        if isinstance(found, CloseReason):
            return Verdict(ReasonCode.NOT_AUTHORIZED, reason=found)
        return replace(step, identity=found)

    async def _delay(self, address: str) -> None:
        delay = self._penalties.failed(address)
        if delay:
            try:
                await asyncio.sleep(delay)
            finally:
                self._penalties.answered()

    # ---- an exchange of several steps ----

    def exchange(self, credentials: Credentials, method: str) -> Exchange | None:
        chain = self._chains[self._tenants.auth_for(credentials)]
        found = chain.exchange(method, partial(self._find_user, chain.name), self._secret)
        if found is None:
            return None
        exchange, name = found
        return GuardedExchange(exchange, partial(self._guard, credentials, chain, name))

    def _guard(
        self, credentials: Credentials, chain: Chain, method: str, ask: Callable[[], Step | Awaitable[Step]]
    ) -> Step | Awaitable[Step]:
        """Take a step of an exchange: an attempt, as each password is."""
        if not self._penalties.begin(credentials.address):
            return TOO_MANY
        goes_on = False
        try:
            answer = ask()
            goes_on = isinstance(answer, Awaitable) or is_wrong(answer)
            if isinstance(answer, Awaitable) or goes_on:
                return self._attempt(credentials, chain, _admitted(credentials, chain, method, answer))
            return self._present(credentials, chain, chain.admitted(credentials, answer, method))
        finally:
            if not goes_on:
                self._penalties.end(credentials.address)

    async def _find_user(self, listener: str, username: str) -> StoredUser | None:
        chain = self._chains.get(listener)  # the present one, also for an exchange that is older
        return None if chain is None else await chain.find_user(username)

    # ---- connected clients ----

    def _chain_of(self, identity: Identity) -> Chain | None:
        """The chain that has authenticated a client; None: its listener is no more."""
        return self._chains.get(self._tenants.auth_of(identity.tenant) or identity.listener)

    def renewed(self, identity: Identity, client_id: str) -> Identity | CloseReason:
        """The present identity and rights of a connected client, or the reason for which it would be refused now."""
        found = self._renewal(identity)
        return found if isinstance(found, CloseReason) else identity_of(found, client_id)

    def renewing(self) -> Callable[[Identity, str], Identity | CloseReason]:
        """As `renewed`, for a walk over many clients: clients with one identity object share the work."""
        known: dict[int, tuple[Identity, Renewal | CloseReason]] = {}
        state: object = None

        def renew(identity: Identity, client_id: str) -> Identity | CloseReason:
            nonlocal state
            if state != self._state:
                state = self._state
                known.clear()
            found = known.get(id(identity))
            if found is None:
                if len(known) >= MAX_KNOWN:
                    known.clear()
                found = known[id(identity)] = identity, self._renewal(identity)  # kept, so that its id stays its own
            renewal = found[1]
            return renewal if isinstance(renewal, CloseReason) else identity_of(renewal, client_id)

        return renew

    def _renewal(self, identity: Identity) -> Renewal | CloseReason:
        if identity.listener == LISTENER:
            return identity, None
        chain = self._chain_of(identity)
        return USER_REMOVED if chain is None else chain.renewal(identity)

    @property
    def _state(self) -> tuple[int, int, int]:
        """Changes when users, roles or the configuration change."""
        return self._configured, self.roles.number, self._users().number

    # ---- the check of a right ----

    def decide(self, identity: Identity, client_id: str, action: Action, topic: str) -> Decision:
        """Whether a connected client may do this, and by which rule; `topic` is without the prefix of its tenant."""
        chain = self._chains.get(identity.listener)
        if chain is None:
            return Decision(True, "it is a link of another broker") if identity.listener == LISTENER else NO_LISTENER
        return chain.decide(identity, client_id, action, topic)

    async def decide_user(
        self, username: str | None, client_id: str, listener: str, action: Action, topic: str
    ) -> Decision:
        """Whether clients of a user may do this; None: anonymous clients.

        Raises:
            Away: the user can't be looked up for now.
        """
        chain = self._chains.get(listener)
        if chain is None:
            return NO_LISTENER
        if username is None:
            if not chain.anonymous:
                return Decision(False, "the listener refuses anonymous clients")
            return chain.decide(Identity(listener=listener), client_id, action, topic)
        found = await chain.find_user(username)
        if found is not None and found.disabled:
            return Decision(False, "the user is disabled")
        if found is None and not chain.methods:
            return chain.decide(Identity(listener=listener), client_id, action, topic)  # names are not verified
        identity = Identity(username) if found is None else found.identity
        decision = chain.decide(identity.replace(listener=listener), client_id, action, topic)
        if found is not None:
            return decision
        return decision._replace(reason=f"{decision.reason}; no store of users has the user, only rules by name count")

    # ---- wills ----

    def author_of(self, identity: Identity) -> bytes:
        return pack_author(identity)

    def look_up_author(self, author: bytes) -> Awaitable[object] | None:
        """Look up the user of a will if it is one of the store that this node has not read; raises Away."""
        users = self._users()
        try:
            identity = parse_author(author, "")
        except ValueError:
            return None
        if identity.method != USERS or users.known(identity.username or "") is not None:
            return None
        return users.find(identity.username or "")

    def may_publish_will(self, author: bytes, client_id: bytes, topic: bytes) -> bool:
        """Whether a client without a connection may publish its will, by the rules of now.

        Args:
            author: of the will, as stored.
            client_id: with the prefix of its tenant.
            topic: that the will is published to, with that prefix.
        """
        prefix, name = tenants.split(client_id)
        try:
            identity = parse_author(author, tenants.name_of(prefix))
        except ValueError as error:
            log.error("the author of a stored will is unreadable; it is not published", client_id=name, error=error)
            return False
        if identity.listener == LISTENER:
            return True
        chain = self._chain_of(identity)
        rights = NO_RIGHTS if chain is None else chain.rights_of_absent(identity, name)
        return rights is None or rights.may_publish(topic)

    def close(self) -> None:
        """End the threads."""
        self._builder.close()


def _check_tenants(config: Config, chains: Mapping[str, Chain]) -> None:
    """Raise ConfigError: any client could be of a tenant that has its own users."""
    for rule in config.tenants:
        chain = chains.get(rule.auth_of)
        if rule.auth_of and chain is None:
            raise ConfigError(f"tenants: auth_of = {rule.auth_of!r}: the listener is new", "restart the node")
        if chain is not None and not chain.methods:
            raise ConfigError(
                f"tenants: auth_of = {rule.auth_of!r} of {rule.name}: that listener does not authenticate its clients",
                f'such as auth.password_file = "FILE" in [listeners.{rule.auth_of}]',
            )


def is_wrong(step: Step) -> bool:
    """Whether a step refuses wrong credentials."""
    return isinstance(step, Verdict) and step.code == ReasonCode.BAD_USERNAME_OR_PASSWORD


async def _admitted(credentials: Credentials, chain: Chain, method: str, answer: Step | Awaitable[Step]) -> Step:
    step = await answer if isinstance(answer, Awaitable) else answer
    return chain.admitted(credentials, step, method)


def _paths(auth: AuthConfig) -> list[str]:
    return [path for name in FILES if (path := str(getattr(auth, name)))]


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
