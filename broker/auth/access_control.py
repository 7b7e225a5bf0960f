"""Access control of a node: the authentication chains of its listeners, and the files behind them.

Built from the configuration at the start, at a reload, and when a file has changed. An invalid file prevents the start.
Later the previous state stays in force, with an error in the log: the node never becomes more open by mistake.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import fields, replace
from typing import Any

from broker import logs
from broker.auth import exposure
from broker.auth.acl_file import AclFile
from broker.auth.authenticator import Credentials, Identity, ReasonCode, Verdict
from broker.auth.chain import Chain, Method
from broker.auth.chain_builder import ChainBuilder
from broker.auth.cluster_users import Source
from broker.auth.penalties import Penalties
from broker.auth.work_pool import Busy
from broker.config.kinds import FilePath
from broker.config.schema import AuthConfig, Config, ListenerConfig
from broker.errors import ConfigError

TOO_MANY = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="its address has sent wrong credentials too often")
BUSY = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="too many clients wait to be authenticated")
CHANGED = Verdict(ReasonCode.NOT_AUTHORIZED, reason="its user has just been removed")
FILES = tuple(key.name for key in fields(AuthConfig) if isinstance(key.metadata["kind"], FilePath))

log = logs.get("flockmq.auth")


class AccessControl:
    """The Authenticator of a node.

    Args:
        config: of the node.
        users: returns the users of the cluster; None: there are none.
        first: authentication methods before those of the configuration, on all listeners.

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
        self._files: dict[str, object] = {}  # path -> stamp of the file
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply a configuration, wholly or not at all.

        Raises:
            ConfigError: as for the class; then nothing has changed.
        """
        exposure.check(config, asked=bool(self._first))
        listeners = config.listeners
        files = {path: _stamp(path) for listener in listeners for path in _paths(listener.auth)}
        chains = {listener.name: self._chain(listener) for listener in listeners}
        self._config, self._chains, self._files = config, chains, files
        self._builder.verifier.configure(config.auth.remember)
        self._penalties.configure(config.auth.failure_delay)

    def _chain(self, listener: ListenerConfig) -> Chain:
        auth = listener.auth
        methods = [*self._first, *self._builder.of(listener)]
        acl = AclFile(auth.acl_file) if auth.acl_file else None
        anonymous = auth.allow_anonymous or not methods
        return Chain(methods, self._builder.verifier, anonymous=anonymous, acl=acl)

    def changed(self) -> bool:
        """Read the files again if one of them has changed; whether their content was applied."""
        found = {path: _stamp(path) for path in self._files}
        if found == self._files:
            return False
        try:
            self.configure(self._config)
        except ConfigError as error:
            self._files = found  # logged once
            log.error("reading users and access rules failed; the previous ones stay in force", error=error)
            return False
        log.info("users and access rules were reloaded")
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
            if verdict.code == ReasonCode.BAD_USERNAME_OR_PASSWORD:
                await self._delay(address)
            if verdict.code == ReasonCode.ACCEPTED and self._chains.get(credentials.listener) is not chain:
                found = self.renewed(verdict.identity)  # rules may have changed meanwhile
                return CHANGED if found is None else replace(verdict, identity=found)
            return verdict
        except Busy:
            return BUSY
        finally:
            self._penalties.end(address)

    async def _delay(self, address: str) -> None:
        delay = self._penalties.failed(address)
        if delay:
            try:
                await asyncio.sleep(delay)
            finally:
                self._penalties.answered()

    # ---- connected clients ----

    def renewed(self, identity: Identity) -> Identity | None:
        """The present identity and rights of a connected client; None: it would be refused now."""
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
