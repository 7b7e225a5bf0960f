"""The link: the one connection to Redis for everything that has an order.

It speaks RESP3: messages to this node's channels arrive on the same connection as the replies, in the order in which
Redis executed their causes. This module handles commands, replies and pushes; their meaning is its callers'.

A reply belongs to the oldest call without one. When the connection ends, every pending call gets a `LinkLost`: Redis
may or may not have executed it.

In a Redis Cluster the keys can go to another primary. A reply or a push that shows it ends the connection, and the next
one is to the new primary. ASK is never followed: while a slot is moving, no function may see only a part of its keys.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis

from broker import logs

Reply = Any
Then = Callable[[Reply], object]


class LinkLost(Exception):
    """The connection ended before the reply arrived."""


class LinkError(Exception):
    """Redis is unusable: it refuses, is unreachable, or lacks a required setting. The text has the reason."""


LOST = LinkLost("the connection to Redis was lost")
NOTHING = object()  # the reader has no complete reply
CONNECT_SECONDS = 3.0
# Replies of a server of a Redis Cluster that does not have all keys of the slot, or may not change them. READONLY: of a
# primary that became a replica; MASTERDOWN: of a replica without a primary.
ELSEWHERE = ("MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN")

log = logs.get("flockmq.cluster")


def ignore(reply: Reply) -> None:
    """For calls whose reply does not matter."""


class Link(asyncio.Protocol):
    """A connection to Redis.

    Args:
        on_push: called with channel and payload of each message that is published to this node.
        on_drained: called when all received data is processed.
        on_lost: called once, when the connection has ended.
        patience: seconds without data after which `ask` gives up.
        in_slot: whether it is to a server of a Redis Cluster, which can lose the slot of the keys.
    """

    def __init__(
        self,
        on_push: Callable[[bytes, bytes], object],
        on_drained: Callable[[], object],
        on_lost: Callable[[], object],
        patience: float,
        in_slot: bool = False,
    ) -> None:
        self._in_slot = in_slot
        self.why_closed = ""  # the reason why this side has ended the connection, if it has one
        self._on_push = on_push
        self._on_drained = on_drained
        self._on_lost = on_lost
        self._patience = patience
        self._reader = hiredis.Reader(notEnoughData=NOTHING)
        self._waiting: deque[tuple[Then, float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._held: list[tuple[bytes, bytes]] | None = None
        self._deferred: list[Any] | None = None  # replies and pushes received while `call_first` waits for its reply
        self._replies_before = 0  # number of earlier calls without a reply yet
        self._on_first: Callable[[Reply], object] = ignore
        self._read_at = time.monotonic()

    async def connect(self, place: tuple[str, int] | str, tls: ssl.SSLContext | None) -> None:
        """Open the connection.

        Raises:
            OSError: Redis is unreachable.
        """
        loop = asyncio.get_running_loop()
        if isinstance(place, str):
            making = loop.create_unix_connection(lambda: self, place)
        else:
            making = loop.create_connection(
                lambda: self, *place, ssl=tls, server_hostname=place[0] if tls is not None else None
            )
        await asyncio.wait_for(making, CONNECT_SECONDS)

    @property
    def open(self) -> bool:
        """Whether calls can be sent."""
        return self._transport is not None

    @property
    def silent_for(self) -> float:
        """Seconds that the oldest pending call has waited without any data arriving; 0 if none is pending."""
        if not self._waiting:
            return 0.0
        return time.monotonic() - max(self._read_at, self._waiting[0][1])

    def call(self, then: Then, *command: bytes | str | int) -> None:
        """Send a command; `then` gets the reply, which may be a hiredis.ReplyError, or LOST."""
        if self._transport is None:
            then(LOST)
            return
        self._waiting.append((then, time.monotonic()))
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]

    async def ask(self, *command: bytes | str | int, first: Then = ignore) -> Reply:
        """Send a command and wait for its reply.

        Args:
            command: the command and its arguments.
            first: gets the reply, an error of Redis, or LOST, before anything is processed that arrives after it.

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
        if isinstance(reply, hiredis.ReplyError):
            raise LinkError(str(reply))
        return reply

    def close(self, why: str = "") -> None:
        """End the connection, for a reason or at its end; this calls `on_lost`."""
        if self._transport is not None:
            self.why_closed = why
            self._transport.abort()
            self.connection_lost(None)

    def subscribe(self, command: bytes, channel: bytes) -> None:
        """Receive the messages of a channel. It has no reply; the reply to the next call confirms it."""
        if self._transport is not None:
            self._transport.write(hiredis.pack_command((command, channel)))  # type: ignore[arg-type]

    def set_on_lost(self, on_lost: Callable[[], object]) -> None:
        """Replace the function that is called when the connection has ended."""
        self._on_lost = on_lost

    # ---- deferred pushes and replies ----

    def hold(self) -> None:
        """Keep pushes until `release`: the state that they change is still being read."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Process the kept pushes, in order."""
        held, self._held = self._held, None
        for channel, payload in held or ():
            self._push(channel, payload)
        self._on_drained()

    def call_first(self, decide: Callable[[Reply], bool], *command: bytes | str | int) -> None:
        """Send a command, and defer all replies and pushes until its reply.

        `decide` gets that reply, and returns whether to process the deferred ones.
        """

        def decided(reply: Reply) -> None:
            deferred, self._deferred = self._deferred, None
            if decide(reply):
                for item in deferred or ():
                    self._take(item)

        if self._deferred is None:
            self._deferred = []
            self._replies_before = len(self._waiting)
            self._on_first = decided
            self.call(ignore, *command)

    # ---- called by the loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read_at = time.monotonic()
        self._reader.feed(data)
        try:
            while (item := self._reader.gets()) is not NOTHING:
                if self._in_slot and (why := _elsewhere(item)):
                    self.close(why)
                    break
                if self._deferred is None:
                    self._take(item)
                elif isinstance(item, hiredis.PushNotification) or self._replies_before:
                    self._replies_before -= not isinstance(item, hiredis.PushNotification)
                    self._deferred.append(item)
                else:
                    position = sum(not isinstance(held, hiredis.PushNotification) for held in self._deferred)
                    del self._waiting[position]
                    self._on_first(item)
        except hiredis.ProtocolError as error:
            log.error("Redis sent an invalid reply", error=error)
            self.close()
        self._on_drained()

    def _take(self, item: Any) -> None:
        if isinstance(item, hiredis.PushNotification):
            if item[0] == b"message" or item[0] == b"smessage":
                self._push(item[1], item[2])
        elif self._waiting:
            then, _ = self._waiting.popleft()
            self._act(then, item)

    def _push(self, channel: bytes, payload: bytes) -> None:
        if self._held is not None:
            self._held.append((channel, payload))
        else:
            self._act(self._on_push, channel, payload)

    def _act(self, then: Callable[..., object], *arguments: Any) -> None:
        try:
            then(*arguments)
        except Exception:
            log.exception("internal error: processing data from Redis failed")

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._held = self._deferred = None
        waiting, self._waiting = self._waiting, deque()
        lost = LinkLost(self.why_closed) if self.why_closed else LOST
        for then, _ in waiting:
            self._act(then, lost)
        self._act(self._on_lost)


def is_forbidden(reason: str) -> bool:
    """Whether a reply with this text says that the user may not use a command, a key or a channel."""
    return reason.startswith("NOPERM") or "no permissions" in reason or "user executing the script" in reason


def _elsewhere(item: Any) -> str:
    """The reason why a reply or push shows that the keys are elsewhere, or will be; empty if it does not."""
    if isinstance(item, hiredis.ReplyError):
        text = str(item)
        return f"another primary has the keys, or will have them: {text}" if text.startswith(ELSEWHERE) else ""
    if isinstance(item, hiredis.PushNotification) and item[0] == b"sunsubscribe":
        return "the slot of the keys has moved to another primary"
    return ""
