"""The link: the only connection to Redis for everything that has an order.

It speaks RESP3: messages to this node's channels arrive on the same connection as the replies, in the order in which
Redis executed their causes. `_speedups/cluster/link.pyx` handles commands, replies and pushes; their meaning is its
callers'. This module opens the connection, and waits for replies.

In a Redis Cluster the keys can go to another primary. A reply or a push that shows it ends the connection, and the next
one is to the new primary. ASK is never followed: while a slot is moving, no function may see only a part of its keys.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, cast

from ..._speedups.cluster.link import LinkLost, RedisConnection, ignore
from ..._speedups.cluster.resp import ReplyError
from ..._speedups.net.reactor import Reactor
from ...broker.errors import NotNow

__all__ = [
    "Link",
    "LinkError",
    "LinkLost",
    "Reply",
    "ReplyError",
    "Then",
    "away_is_not_now",
    "ignore",
    "info_fields",
    "is_forbidden",
]

Reply = Any
Then = Callable[[Reply], object]
CONNECT_SECONDS = 3.0

# Reasons of a node that rejoins. Redis answers its calls with `gone` in the last case.
LOST_DATA = "Redis has lost committed data"
DECLARED_DEAD = "another node declared this one dead"
GONE = f"Redis has this node no more: {DECLARED_DEAD}, or Redis has lost its data"


class LinkError(Exception):
    """Redis is unusable: it refuses, is unreachable, or lacks a required setting. The text has the reason."""


class Link(RedisConnection):
    """A connection to Redis.

    Args:
        reactor, on_push, on_drained, on_lost, in_slot: of a RedisConnection.
        patience: seconds without data after which `ask` gives up.
    """

    def __init__(
        self,
        reactor: Reactor,
        on_push: Callable[[bytes, bytes], int],
        on_drained: Callable[[], object],
        on_lost: Callable[[], object],
        *,
        patience: float,
        in_slot: bool = False,
    ) -> None:
        super().__init__(reactor, on_push, on_drained, on_lost, in_slot)
        self._patience = patience

    async def connect(self, place: tuple[str, int] | str, tls: ssl.SSLContext | None) -> None:
        """Open the connection.

        Raises:
            OSError: Redis is unreachable.
        """
        async with asyncio.timeout(CONNECT_SECONDS):
            connected = await _connect(place)
            if tls is not None:
                connected = await _encrypt(connected, tls, place[0])
        self.serve(connected)

    async def ask(self, *command: bytes | str | int, first: Then = ignore) -> Reply:
        """Send a command and wait for its reply.

        Args:
            command: the command and its arguments.
            first: gets the reply, an error of Redis, or LinkLost, before anything is processed that arrives after it.

        Raises:
            LinkLost: the connection ended, or no data arrived for too long.
            LinkError: Redis replied with an error.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()

        def answered(reply: Reply) -> None:
            first(reply)
            if not answer.done():
                answer.set_result(reply)

        self.call(answered, *command)
        while not answer.done():
            await asyncio.wait((answer,), timeout=self._patience)
            if not answer.done() and self.silent_for >= self._patience:
                self.close()
        reply = answer.result()
        if isinstance(reply, LinkLost):
            raise reply
        if isinstance(reply, ReplyError):
            raise LinkError(str(reply))
        return reply


class _End(asyncio.Protocol):
    """One of two connections that pass on to each other whatever they receive, until one of them ends."""

    other: "_End"
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self.other.transport is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        assert self.other.transport is not None
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        assert self.other.transport is not None
        self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other.transport is not None:
            self.other.transport.close()


async def _connect(place: tuple[str, int] | str) -> socket.socket:
    """A socket that is connected to this host and port, or to a Unix socket."""
    loop = asyncio.get_running_loop()
    if isinstance(place, str):
        addresses = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", place)]
    else:
        addresses = await loop.getaddrinfo(*place, type=socket.SOCK_STREAM)  # type: ignore[assignment]
    failure: OSError = OSError(f"{place[0]} has no address")
    for family, kind, protocol, _, address in addresses:
        connected = socket.socket(family, kind, protocol)
        connected.setblocking(False)
        try:
            await loop.sock_connect(connected, address)
        except OSError as error:
            connected.close()
            failure = error
        except BaseException:
            connected.close()
            raise
        else:
            if family != socket.AF_UNIX:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected
    raise failure


async def _encrypt(connected: socket.socket, tls: ssl.SSLContext, host: str) -> socket.socket:
    """A socket whose bytes pass through TLS over the connected one. OpenSSL is the event loop's, not the reactor's."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    plain, secret = _End(), _End()
    plain.other, secret.other = secret, plain
    theirs.setblocking(False)
    try:
        await loop.create_connection(lambda: plain, sock=theirs)  # first: nothing arrives there before `ours` is used
        await loop.create_connection(lambda: secret, sock=connected, ssl=tls, server_hostname=host)
    except BaseException:
        for each in (connected, ours, theirs):
            each.close()
        raise
    return ours


def info_fields(reply: bytes | str) -> dict[str, str]:
    """The fields in a reply of INFO, by name."""
    text = reply.decode() if isinstance(reply, bytes) else reply
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def is_forbidden(reason: str) -> bool:
    """Whether a reply with this text says that the user may not use a command, a key or a channel."""
    return reason.startswith("NOPERM") or "no permissions" in reason or "user executing the script" in reason


@contextlib.contextmanager
def away_is_not_now() -> Iterator[None]:
    """Report an unreachable Redis as NotNow: the callers are independent of Redis."""
    try:
        yield
    except (LinkLost, LinkError) as error:
        raise NotNow("Redis is away") from error
