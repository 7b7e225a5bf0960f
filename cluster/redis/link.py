"""The link: the one connection to Redis that carries all that has an order.

RESP3, so that what is published to this node's channels comes on the same connection as the replies, in the order in
which Redis executed what caused it. Knows commands, replies and pushes; what they mean is for others.

A reply belongs to the oldest call that has none. When the connection ends, every call that waits is told `LOST`:
whether it was executed is then unknown.
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
    """The connection ended before the reply came."""


class LinkError(Exception):
    """Redis can't be used: refused, not reached, or not as it must be. Told in words."""


LOST = LinkLost("the connection to Redis was lost")
NOTHING = object()  # the reader has no whole reply
CONNECT_SECONDS = 3.0

log = logs.get("flockmq.cluster")


def ignore(reply: Reply) -> None:
    """For calls whose reply says nothing."""


class Link(asyncio.Protocol):
    """A connection to Redis.

    Args:
        pushed: called with channel and payload of what is published to this node.
        settle: called when all that has come at once was acted on.
        lost: called once, when the connection has ended.
        patience: seconds that nothing may come while `ask` waits.
    """

    def __init__(
        self,
        pushed: Callable[[bytes, bytes], object],
        settle: Callable[[], object],
        lost: Callable[[], object],
        patience: float,
    ) -> None:
        self._pushed = pushed
        self._settle = settle
        self._lost = lost
        self._patience = patience
        self._reader = hiredis.Reader(notEnoughData=NOTHING)
        self._waiting: deque[tuple[Then, float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._held: list[tuple[bytes, bytes]] | None = None
        self._unjudged: list[Any] | None = None  # what came before the reply that `hold_until` waits for
        self._judge_at = 0  # replies before it
        self._judge: Callable[[Reply], object] = ignore
        self.heard_at = time.monotonic()

    async def connect(self, place: tuple[str, int] | str, tls: ssl.SSLContext | None) -> None:
        """Open the connection.

        Raises:
            OSError: it can't be.
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
        """Seconds that the oldest call has waited without anything coming; 0 if none waits."""
        if not self._waiting:
            return 0.0
        return time.monotonic() - max(self.heard_at, self._waiting[0][1])

    def call(self, then: Then, *command: bytes | str | int) -> None:
        """Send a command; `then` gets the reply, which may be a hiredis.ReplyError, or LOST."""
        if self._transport is None:
            then(LOST)
            return
        self._waiting.append((then, time.monotonic()))
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]

    async def ask(self, *command: bytes | str | int) -> Reply:
        """Send a command and wait for its reply.

        Raises:
            LinkLost: the connection ended, or nothing came for too long.
            LinkError: Redis says that it can't be done.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()

        def answered(reply: Reply) -> None:
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

    def close(self) -> None:
        """End the connection. `lost` is called."""
        if self._transport is not None:
            self._transport.abort()
            self.connection_lost(None)

    def subscribe(self, channel: bytes) -> None:
        """Be told what is published to a channel. There is no reply: the next call's says that it is done."""
        if self._transport is not None:
            self._transport.write(hiredis.pack_command((b"SUBSCRIBE", channel)))  # type: ignore[arg-type]

    def on_lost(self, lost: Callable[[], object]) -> None:
        """Call this instead of `lost`."""
        self._lost = lost

    # ---- pushes that must wait ----

    def hold(self) -> None:
        """Keep pushes until `release`: what they build on is being read."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Act on the pushes that were kept, in order."""
        held, self._held = self._held, None
        for channel, payload in held or ():
            self._push(channel, payload)
        self._settle()

    def hold_until(self, judge: Callable[[Reply], bool], *command: bytes | str | int) -> None:
        """Send a command, and act on nothing before its reply; `judge` gets it, and says whether the rest counts."""

        def judged(reply: Reply) -> None:
            events, self._unjudged = self._unjudged, None
            if judge(reply):
                for item in events or ():
                    self._take(item)

        if self._unjudged is None:
            self._unjudged = []
            self._judge_at = len(self._waiting)
            self._judge = judged
            self.call(ignore, *command)

    # ---- called by the loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        self._reader.feed(data)
        try:
            while (item := self._reader.gets()) is not NOTHING:
                if self._unjudged is None:
                    self._take(item)
                elif isinstance(item, hiredis.PushNotification) or self._judge_at:
                    self._judge_at -= not isinstance(item, hiredis.PushNotification)
                    self._unjudged.append(item)
                else:
                    position = sum(not isinstance(held, hiredis.PushNotification) for held in self._unjudged)
                    del self._waiting[position]
                    self._judge(item)
        except hiredis.ProtocolError as error:
            log.error("Redis sent what can't be read", error=error)
            self.close()
        self._settle()

    def _take(self, item: Any) -> None:
        if isinstance(item, hiredis.PushNotification):
            if item[0] == b"message":
                self._push(item[1], item[2])
        elif self._waiting:
            then, _ = self._waiting.popleft()
            self._act(then, item)

    def _push(self, channel: bytes, payload: bytes) -> None:
        if self._held is not None:
            self._held.append((channel, payload))
        else:
            self._act(self._pushed, channel, payload)

    def _act(self, then: Callable[..., object], *arguments: Any) -> None:
        try:
            then(*arguments)
        except Exception:
            log.exception("internal error: acting on what Redis sent failed")

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._held = self._unjudged = None
        waiting, self._waiting = self._waiting, deque()
        for then, _ in waiting:
            self._act(then, LOST)
        self._act(self._lost)
