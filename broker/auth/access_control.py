"""Who may connect to this node, and do what: the chains of its listeners, and the files behind them.

Built from the configuration, and again when that is read again or a file has changed. A file that can't be used stops
the start; later the node goes on with what it knew before, and says so: it never becomes more open by mistake.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from broker import logs
from broker.auth import exposure
from broker.auth.acl_file import AclFile
from broker.auth.authenticator import Credentials, Identity, ReturnCode, Verdict
from broker.auth.chain import Chain, Method
from broker.auth.chain_builder import ChainBuilder
from broker.auth.cluster_users import Source
from broker.auth.penalties import Penalties
from broker.auth.work_pool import Busy
from broker.config.schema import AuthConfig, Config, ListenerConfig
from broker.errors import ConfigError

TOO_MANY = Verdict(ReturnCode.SERVER_UNAVAILABLE, reason="its address has shown wrong credentials too often")
BUSY = Verdict(ReturnCode.SERVER_UNAVAILABLE, reason="too many clients wait to be authenticated")
CHANGED = Verdict(ReturnCode.NOT_AUTHORIZED, reason="its user has just been removed")
FILES = ("password_file", "acl_file", "jwt_secret_file", "jwt_keys")

log = logs.get("flockmq.auth")


class AccessControl:
    """The Authenticator of a node.

    Args:
        config: of the node.
        users: gives the users that the cluster keeps; None: it keeps none.
        first: ways to authenticate that come before those of the configuration, on all listeners.

    Raises:
        ConfigError: the node would be open to the network by mistake, or a file can't be used.
    """

    def __init__(
        self, config: Config, users: Callable[[], Source | None] = lambda: None, first: Sequence[Method] = ()
    ) -> None:
        self._builder = ChainBuilder(users)
        self._penalties = Penalties()
        self._first = tuple(first)
        self._chains: dict[str, Chain] = {}
        self._files: dict[str, object] = {}  # path -> what tells a change
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Follow a configuration, wholly or not at all.

        Raises:
            ConfigError: as for the class; then nothing has changed.
        """
        exposure.check(config, asked=bool(self._first))
        listeners = config.listeners
        files = {path: _stamp(path) for listener in listeners for path in _paths(listener.auth)}
        chains = {listener.name: self._chain(listener) for listener in listeners}
        self._config, self._chains, self._files = config, chains, files
        self._builder.verifier.remember = config.auth.remember
        self._penalties.first_delay = config.auth.failure_delay

    def _chain(self, listener: ListenerConfig) -> Chain:
        auth = listener.auth
        methods = [*self._first, *self._builder.of(listener)]
        acl = AclFile(auth.acl_file) if auth.acl_file else None
        anonymous = auth.allow_anonymous or not methods
        return Chain(methods, self._builder.verifier, anonymous=anonymous, acl=acl)

    def changed(self) -> bool:
        """Read the files again if one of them has changed; whether what was found is followed from now on."""
        found = {path: _stamp(path) for path in self._files}
        if found == self._files:
            return False
        try:
            self.configure(self._config)
        except ConfigError as error:
            self._files = found  # told once
            log.error("a file of the configuration is not followed: what was known before still holds", error=error)
            return False
        log.info("users and rules of access were read again")
        return True

    # ---- a CONNECT ----

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        chain = self._chains[credentials.listener]
        answer = chain.authenticate(credentials)
        return answer if isinstance(answer, Verdict) else self._attempt(credentials, chain, answer)

    async def _attempt(self, credentials: Credentials, chain: Chain, answer: Coroutine[Any, Any, Verdict]) -> Verdict:
        address = credentials.address
        if not self._penalties.begin(address):
            answer.close()
            return TOO_MANY
        try:
            verdict = await answer
            if verdict.code == ReturnCode.BAD_USERNAME_OR_PASSWORD:
                await self._let_wait(address)
            if verdict.code == ReturnCode.ACCEPTED and self._chains.get(credentials.listener) is not chain:
                found = self.renewed(verdict.identity)  # who may do what has changed meanwhile
                return CHANGED if found is None else replace(verdict, identity=found)
            return verdict
        except Busy:
            return BUSY
        finally:
            self._penalties.end(address)

    async def _let_wait(self, address: str) -> None:
        delay = self._penalties.failed(address)
        if delay:
            try:
                await asyncio.sleep(delay)
            finally:
                self._penalties.answered()

    # ---- those who are connected ----

    def renewed(self, identity: Identity) -> Identity | None:
        """Who a connected client is by now, and what it may; None: it would not be let in any more."""
        chain = self._chains.get(identity.listener)
        return None if chain is None else chain.renewed(identity)

    def close(self) -> None:
        """End the threads."""
        self._builder.close()


def _paths(auth: AuthConfig) -> list[str]:
    return [path for name in FILES if (path := str(getattr(auth, name)))]


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
