"""The primary of a Redis Cluster that owns a slot, and connections of redis-py that follow it.

A connection asks for the owner when it is made. If a reply shows that the slot is elsewhere, or is moving, the
connection ends with a ConnectionError: the command was not executed, and the next connection asks again.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.connection
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, ReadOnlyError, TryAgainError
from redis.retry import Retry

Place = tuple[str, int]
SECONDS = 1.0  # that one server may take: others know the owner as well
ELSEWHERE = (AskError, ClusterDownError, ReadOnlyError, TryAgainError)  # AskError: MOVED, too


def find_owner(hosts: Iterable[Place], slot: int, arguments: dict[str, Any]) -> Place:
    """Host and port of the slot's owner. The servers are asked in any order, until one names it.

    Args:
        hosts: servers of the Redis Cluster.
        slot: whose owner is wanted.
        arguments: of a connection of redis-py.

    Raises:
        redis.ResponseError, redis.AuthenticationError: every server refuses.
        redis.ConnectionError: none names it.
    """
    reasons, refusals = [], []
    servers = list(hosts)
    for host, port in random.sample(servers, len(servers)):
        try:
            with redis.Redis(host=host, port=port, retry=Retry(NoBackoff(), 0), **arguments) as client:
                owner = _owner(client.execute_command("CLUSTER", "SLOTS"), slot, host)
        except redis.RedisError as error:
            reasons.append(f"{host}:{port}: {error}")
            if isinstance(error, redis.ResponseError | redis.AuthenticationError):
                refusals.append(error)
            continue
        if owner is not None:
            return owner
        reasons.append(f"{host}:{port}: no primary owns it")
    if len(refusals) == len(servers):
        raise refusals[0]
    raise redis.ConnectionError(f"no server names the primary that owns slot {slot} ({'; '.join(reasons)})")


def _owner(reply: Any, slot: int, asked: str) -> Place | None:
    """The owner in a reply to CLUSTER SLOTS; a server that does not know its own name has the name of the host
    asked."""
    for first, last, (host, port, *_), *_ in reply:
        if first <= slot <= last:
            name = (host or b"").decode()
            return (name if name not in ("", "?") else asked), port
    return None


class Following(redis.Connection):
    """A connection to the owner that `find` returns."""

    def __init__(self, find: Callable[[], Place], **arguments: Any) -> None:
        self._find = find
        super().__init__(**arguments)  # type: ignore[no-untyped-call]

    def connect(self) -> None:
        if not self._sock:
            self.host, self.port = self._find()
        super().connect()  # type: ignore[no-untyped-call]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().read_response(*arguments, **options)
        except ELSEWHERE as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise redis.ConnectionError(
                f"another primary has the keys, or will have them: {type(error).__name__} {error}"
            ) from error


class FollowingTls(Following, redis.SSLConnection):
    """The same over TLS."""


class AsyncFollowing(redis.asyncio.Connection):
    """As `Following`, for asyncio."""

    def __init__(self, find: Callable[[], Place], **arguments: Any) -> None:
        self._find = find
        super().__init__(**arguments)

    async def connect(self) -> None:
        if not self.is_connected:
            self.host, self.port = await asyncio.to_thread(self._find)
        await super().connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*arguments, **options)
        except ELSEWHERE as error:
            await self.disconnect()
            raise redis.ConnectionError(
                f"another primary has the keys, or will have them: {type(error).__name__} {error}"
            ) from error


class AsyncFollowingTls(AsyncFollowing, redis.asyncio.SSLConnection):
    """The same over TLS."""
