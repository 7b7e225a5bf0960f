"""The session of a link at this broker. It is there before the other broker is: acknowledged messages wait in it.

A session that the other broker has not met yet has one more subscription, `NEW`. So that is known after a restart, too.
"""

import asyncio
from collections.abc import Callable

from ..._speedups.base.tick import TICKS_PER_SECOND
from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Publish, Unsubscribe
from ..._speedups.codec.properties import decode_block
from ..._speedups.codec.topics import matches
from ..._speedups.protocol.link_relay import LinkRelay
from ..._speedups.session.session import Session
from ..config.link import CLIENT_ID_PREFIX, LinkConfig
from ..coordination.coordinator import QueueLimits
from ..core.data_plane import DataPlane
from ..core.subscription_options import (
    NO_LOCAL,
    RETAIN_AS_PUBLISHED,
    RETAIN_HANDLING_SHIFT,
    STORED_OPTIONS,
)
from .end import LOCAL_LEVEL, End, LinkError, adopt, closing, connect_local
from .exchange import OPTIONS, WHEN_NEW, subscribe_local
from .pace import Pace

NEW = "$flockmq/new"
LATER = NO_LOCAL | 2 << RETAIN_HANDLING_SHIFT  # no retained messages now, and no RETAIN flag
AT_ONCE = 100  # retained messages that are sent before others have their turn
ENDED = "its session at this broker has ended"


class LocalSession:
    """The session of a link at this broker.

    Args:
        config: of the link.
        limit_queue: sets the limits of the queue of a session.
    """

    def __init__(self, config: LinkConfig, limit_queue: Callable[[bytes, QueueLimits | None], None]) -> None:
        self._config = config
        self._limit_queue = limit_queue
        self._added: set[str] = set()  # filters whose retained messages of QoS 0 the other broker has to get
        self.client_id = (CLIENT_ID_PREFIX + config.name).encode()

    def of(self, plane: DataPlane) -> Session:
        """The session, whose client is connected. Raises LinkError."""
        session = plane.sessions.get(self.client_id)
        if session is None:
            raise LinkError(ENDED)
        return session

    def is_new(self, plane: DataPlane) -> bool:
        """Whether the other broker has not met the session."""
        return NEW in self._known(plane)

    def _known(self, plane: DataPlane) -> dict[str, int]:
        """The options of its subscriptions. Raises LinkError."""
        session = plane.sessions.find(self.client_id)
        if session is None:
            raise LinkError(ENDED)
        return {name.decode(): options for name, options, _ in plane.sessions.subscriptions_of(session)}

    def _wanted(self) -> dict[str, int]:
        """The QoS of each filter that the rules name."""
        return {rule.local_filter: rule.qos for rule in reversed(self._config.topics) if rule.is_out}

    def set_limits(self, plane: DataPlane) -> None:
        """Set the limits of the queue, if the link has its own."""
        config, limits = self._config, plane.config.limits
        own: QueueLimits | None = None
        if config.max_queued_messages or config.max_queued_bytes or config.queue_policy:
            own = (
                config.max_queued_messages or limits.max_queued_messages,
                config.max_queued_bytes or limits.max_queued_bytes,
                (config.queue_policy or limits.queue_policy) == "drop-old",
            )
        self._limit_queue(self.client_id, own)

    async def prepare(self, plane: DataPlane, relay: LinkRelay) -> None:
        """Let the session have the subscriptions of the rules. Raises LinkError.

        Filters that are wanted by the other broker are not known before it reports them. Until it has met the session,
        all that the rules name is wanted; retained messages follow when it asks for them.

        Args:
            plane: of the node.
            relay: of the rules; its packets are dropped, and the session sends again what matters.
        """
        self.set_limits(plane)
        if plane.sessions.knows(self.client_id) and not self._changes(plane):
            return
        local = await adopt(plane.reactor, relay, lambda: None, Pace(0, 0))
        async with closing(local):
            present = (await connect_local(local, self._config.name, 1)).session_present
            self.set_limits(plane)  # a new session has none yet
            local.begin()
            if not present:
                await subscribe_local(local, [(NEW, 0)])
            if self._config.wanted_only:
                if self.is_new(plane):
                    await self._replace(local, plane, LATER)
            else:
                await self.subscribe(local, plane)

    def _changes(self, plane: DataPlane) -> bool:
        """Whether the subscriptions differ from the rules, as far as the rules decide over them."""
        known = self._known(plane)
        if self._config.wanted_only and NEW not in known:
            return False
        options = (LATER if self._config.wanted_only else OPTIONS) & STORED_OPTIONS
        known.pop(NEW, None)
        return known != {name: qos | options for name, qos in self._wanted().items()}

    async def subscribe(self, local: End, plane: DataPlane) -> None:
        """Subscribe to the filters of the rules. Raises LinkError."""
        known = self._known(plane)
        self._added |= {name for name in self._wanted() if not known.get(name, 0) & RETAIN_AS_PUBLISHED}
        await self._replace(local, plane, OPTIONS)

    async def _replace(self, local: End, plane: DataPlane, options: int) -> None:
        """Let the filters of the rules be the subscriptions, new ones first."""
        known, wanted = self._known(plane), self._wanted()
        news = []
        for name, qos in wanted.items():
            if known.get(name) != qos | options & STORED_OPTIONS:
                owed = name in known and not known[name] & RETAIN_AS_PUBLISHED  # its retained messages
                news.append((name, qos | (options & ~WHEN_NEW if owed else options)))
        if news:
            await subscribe_local(local, news)
        if gone := sorted(known.keys() - wanted.keys() - {NEW}):
            await local.request(encode(Unsubscribe(1, gone), LOCAL_LEVEL))

    async def met(self, local: End) -> None:
        """The other broker knows the session now. Raises LinkError."""
        self._added.update(self._wanted())
        await local.request(encode(Unsubscribe(1, [NEW]), LOCAL_LEVEL))

    async def send_retained(self, local: End, remote: End, plane: DataPlane) -> None:
        """Send the retained messages of new filters that no queue holds, since they cross with QoS 0."""
        wanted = self._wanted()
        queued = [name for name, qos in wanted.items() if qos]
        for name in sorted(self._added & wanted.keys()):
            for number, found in enumerate(plane.router.retained.described(name.encode()), 1):
                topic, payload, qos, block, expires = found
                if number % AT_ONCE == 0:
                    await remote.writable.wait()
                    await asyncio.sleep(0)
                if b"\x00" in topic or (qos and any(matches(each, topic) for each in queued)):
                    continue
                properties = decode_block(block)
                if expires:
                    left = max(0, expires - plane.turn.clock)
                    properties["message_expiry_interval"] = left // TICKS_PER_SECOND
                local.feed(encode(Publish(topic.decode(), payload, retain=True, properties=properties), LOCAL_LEVEL))
        if not remote.closed.is_set():
            self._added.clear()
