"""From a Redis URL to connections: clients of redis-py for commands; address and TLS for the link.

Maps the fields of a URL (`flockmq.broker.config.redis_url`) to a client's arguments. No client retries a command:
whether a retry is safe depends on the caller.
"""

import asyncio
import ssl
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from ...broker.config.redis_url import RedisUrl
from .keys import Keys
from .slot_owner import (
    SECONDS,
    AsyncFollowing,
    AsyncFollowingTls,
    Following,
    FollowingTls,
    find_owner,
)

PREFIX = "mq:"
TIMEOUT = 5.0  # seconds for a connection, and for a reply
# The exceptions of an asyncio client's command if Redis is away or refuses. If a connection has ended when redis-py
# writes to it, uvloop raises RuntimeError, and redis-py does not turn it into its own error.
FAILURES = (redis.RedisError, RuntimeError)
CERT_REQS = {"full": "required", "ca": "required", "none": "none"}


@dataclass(frozen=True)
class RedisAddress(RedisUrl):
    """The address of Redis: `RedisAddress.parse(url, prefix)`. `str` of it masks the passwords."""

    prefix: str = PREFIX  # of the keys: in a Redis Cluster it decides which primary has them

    @classmethod
    def parse(cls, url: str, prefix: str = PREFIX) -> Self:
        """The URL's fields, and the prefix of the keys. Raises ValueError as `RedisUrl.parse`."""
        return replace(super().parse(url), prefix=prefix)

    @classmethod
    def parse_first(cls, urls: str, prefix: str = PREFIX) -> Self:
        """As `parse`, of the first of several URLs with spaces between them: it has the logs and their jobs."""
        addresses = [cls.parse(url, prefix) for url in urls.split() or [urls]]
        return addresses[0]

    def __str__(self) -> str:
        return super().__str__()

    @property
    def keys(self) -> Keys:
        """The keys of the cluster there."""
        return Keys(self.prefix, in_slot=self.kind == "cluster")

    def client(self, timeout: float = TIMEOUT) -> redis.Redis:
        """A blocking client, with Sentinel of the current master; connects at the first command."""
        more = {"retry": Retry(NoBackoff(), 0)}
        if self.kind == "sentinel":
            sentinel = Sentinel(  # type: ignore[no-untyped-call]
                self.hosts, sentinel_kwargs=self._sentinel_arguments(timeout) | more, **self._arguments(timeout) | more
            )
            return sentinel.master_for(self.master)  # type: ignore[no-any-return,no-untyped-call]
        if self.kind == "cluster":
            kind = FollowingTls if self.tls else Following
            return redis.Redis.from_pool(redis.ConnectionPool(kind, **self._followed(timeout) | more))
        return redis.Redis(**self._place(), **self._arguments(timeout) | more)

    def async_client(self, timeout: float = TIMEOUT) -> redis.asyncio.Redis:
        """As `client`, for asyncio. Commands raise `FAILURES`."""
        more = {"retry": AsyncRetry(NoBackoff(), 0)}
        if self.kind == "sentinel":
            return self._async_sentinel(timeout).master_for(self.master)  # type: ignore[no-any-return]
        if self.kind == "cluster":
            kind = AsyncFollowingTls if self.tls else AsyncFollowing
            return redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(kind, **self._followed(timeout) | more))
        return redis.asyncio.Redis(**self._place(), **self._arguments(timeout) | more)

    async def endpoint(self, timeout: float = TIMEOUT) -> tuple[str, int] | str:  # noqa: ASYNC109, for each Sentinel
        """Host and port of the current master, or the path of a unix socket.

        Raises:
            OSError: no Sentinel replies, or none has an address of the master; likewise the servers of a Redis Cluster.
            redis.ResponseError, redis.AuthenticationError: every server of a Redis Cluster refuses.
        """
        if self.kind == "unix":
            return self.path
        if self.kind == "cluster":
            try:
                return await asyncio.to_thread(self._find_owner, timeout)
            except redis.AuthenticationError:
                raise
            except (redis.ConnectionError, redis.TimeoutError) as error:
                raise ConnectionError(str(error)) from error
        if self.kind != "sentinel":
            return self.hosts[0]
        sentinel = self._async_sentinel(timeout)
        sentinels = list(zip(self.hosts, sentinel.sentinels, strict=True))
        try:
            host, port = await sentinel.discover_master(self.master)
            return host, int(port)
        except FAILURES as error:
            reasons = [f"{host}:{port}: {await self._why_not(client)}" for (host, port), client in sentinels]
            raise ConnectionError(f"no Sentinel names the master {self.master} ({'; '.join(reasons)})") from error
        finally:
            for _, client in sentinels:
                await client.aclose()

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS for a connection to `endpoint`; None without TLS.

        Raises:
            OSError: a file is unreadable, or isn't a certificate.
        """
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_file or None)
        context.check_hostname = self.verify == "full"
        if self.verify == "none":
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context

    def _async_sentinel(self, timeout: float) -> AsyncSentinel:
        more = {"retry": AsyncRetry(NoBackoff(), 0)}
        return AsyncSentinel(  # type: ignore[no-untyped-call]
            self.hosts, sentinel_kwargs=self._sentinel_arguments(timeout) | more, **self._arguments(timeout) | more
        )

    async def _why_not(self, sentinel: redis.asyncio.Redis) -> str:
        try:
            await sentinel.ping()
        except FAILURES as error:
            return str(error)
        return "no such master, or it is down"

    def _find_owner(self, timeout: float) -> tuple[str, int]:
        return find_owner(self.hosts, self.keys.slot, self._arguments(min(timeout, SECONDS)))

    def _followed(self, timeout: float) -> dict[str, Any]:
        """The arguments of a connection to the primary that owns the keys."""
        arguments = self._arguments(timeout)
        arguments.pop("ssl", None)
        return arguments | {"find": partial(self._find_owner, timeout)}

    def _place(self) -> dict[str, Any]:
        if self.kind == "unix":
            return {"unix_socket_path": self.path}
        host, port = self.hosts[0]
        return {"host": host, "port": port}

    def _arguments(self, timeout: float) -> dict[str, Any]:
        """The arguments of a connection to Redis, without its address."""
        return self._connection(timeout, self.username, self.password) | {"db": self.db}

    def _sentinel_arguments(self, timeout: float) -> dict[str, Any]:
        return self._connection(timeout, self.sentinel_username, self.sentinel_password)

    def _connection(self, timeout: float, username: str, password: str) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "username": username or None,
            "password": password or None,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "protocol": 2,  # replies look the same in every version of redis-py
        }
        if self.tls:
            arguments |= {
                "ssl": True,
                "ssl_cert_reqs": CERT_REQS[self.verify],
                "ssl_check_hostname": self.verify == "full",
                "ssl_ca_certs": self.ca_file or None,
                "ssl_certfile": self.cert_file or None,
                "ssl_keyfile": self.key_file or None,
            }
        return arguments
