"""The events of clients and sessions, as messages and for hooks.

An event is made if a message with its topic name has a receiver, or if a hook has a method for it. Both tests need no
state, so an event without a reader costs a look at the tree of filters, and no memory.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..._speedups.base.tick import TICKS_PER_SECOND
from ..._speedups.codec.packets import Connect, Subscribe
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.codec.topics import split_tenant
from ..._speedups.net.connection import Connection
from ..._speedups.session.session import Session
from ..config.schema import EventsConfig
from ..coordination.coordinator import Coordinator
from ..core.data_plane import DataPlane
from ..core.lost_messages import Lost
from ..core.session_follower import Subscription
from ..core.subscription_options import MAXIMUM_QOS
from ..hooks.api import Client
from ..hooks.chain import HookChain, client_of
from .outbox import Outbox
from .topics import CLIENTS, OF_TENANT, ROOT

SHOWN_FILTERS = 100  # of a packet ...
SHOWN_BYTES = 8192  # ... and bytes of them
EPISODE_SECONDS = 10.0  # between events of a client that goes on losing messages, or that goes on being too fast
MAX_EPISODES = 1000  # at a time, of each kind

KINDS = (
    "connected",
    "disconnected",
    "refused",
    "session_created",
    "session_ended",
    "subscribed",
    "unsubscribed",
    "dropped",
    "throttled",
)
LAST_LEVELS = {kind: b"/" + kind.encode() for kind in KINDS}  # of topic names

Values = dict[str, Any]


@dataclass(slots=True)
class Episode:
    """A time in which a client loses messages, or in which it is throttled."""

    until: float  # monotonic; the next event, if it goes on
    began: float
    queue_full: int = 0  # messages since the last event
    output_full: int = 0


class ClientEvents:
    """Makes the events of a node; a follower of its sessions.

    Args:
        data_plane: of the node.
        hooks: notified of events.
        coordinator: of the node.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        hooks: HookChain,
        coordinator: Coordinator,
    ) -> None:
        self.outbox = Outbox(data_plane, lambda: coordinator.nodes.node_id)
        self._data_plane = data_plane
        self._filters = data_plane.router.filters
        self._hooks = hooks
        self._nodes = coordinator.nodes
        self._number_of = coordinator.owner.number_of
        self._subscribing = coordinator.subscribing
        self._looked_at = -1  # `changes` of the filters when `_is_unread` was true or not
        self._is_unread = False
        self._losing: dict[bytes, Episode] = {}
        self._throttled: dict[bytes, Episode] = {}

    def configure(self, config: EventsConfig) -> None:
        """Apply a configuration, at the start and after a reload."""
        self.outbox.rate, self._of_tenants = config.rate, config.of_tenants
        self._looked_at = -1

    # ---- connections ----

    def attached(self, connection: Connection, session: Session, packet: Connect, *, present: bool) -> None:
        """A client has got CONNACK."""
        if not present:
            self._emit(
                session.client_id,
                "session_created",
                lambda _: {"persistent": session.persistent, "session_expiry": session.expiry},
            )
        self._emit(
            session.client_id,
            "connected",
            lambda _: {
                **self._described(connection),
                "level": packet.protocol_level,
                "clean_start": packet.clean_start,
                "keep_alive": packet.keep_alive,
                "session_present": present,
            },
        )

    def disconnected(self, connection: Connection, session: Session, reason: str) -> None:
        """The connection of a client that had got CONNACK has ended."""
        if connection.session is None:  # it had not
            return
        seconds = (self._data_plane.turn.tick - connection.accepted_tick) / TICKS_PER_SECOND
        self._emit(
            session.client_id,
            "disconnected",
            lambda _: {
                **self._described(connection),
                "reason": str(reason),
                "reason_code": getattr(reason, "code", None),
                "seconds": seconds,
            },
        )

    def refused(self, connection: Connection, client_id: str, username: str, code: ReasonCode, reason: str) -> None:
        """A CONNECT is refused. Its names are as the client gave them, so none of them proves its tenant."""
        if self._hooks.has("refused"):
            client = Client(client_id, username or None, connection.address, connection.listener)
            self._hooks.notify("refused", client, code, reason)
        if client_id and self.outbox.rate and (self._of_tenants or not self._data_plane.config.tenants):
            self._emit_to(
                "",
                CLIENTS,
                client_id.encode(),
                "refused",
                {
                    "username": username or None,
                    "address": connection.address,
                    "listener": connection.listener,
                    "reason": reason or code.name.lower().replace("_", " "),
                    "reason_code": int(code),
                },
            )

    def _described(self, connection: Connection) -> Values:
        return {
            "connection": self._number_of(connection),
            "username": connection.identity.username,
            "address": connection.address,
            "listener": connection.listener,
            "transport": connection.transport,
        }

    # ---- sessions ----

    def session_ended(self, client_id: bytes) -> None:
        """A session has ended, for any reason."""
        self._emit(client_id, "session_ended", lambda _: {})

    def subscribing(self, session: Session, added: Sequence[Subscription], packet: Subscribe | None) -> None:
        """Nothing to do before subscriptions hold."""

    def subscribed(self, session: Session, added: Sequence[Subscription]) -> None:
        """Subscriptions hold everywhere."""
        if not added:
            return
        names = [each.name.decode() for each in added]
        qos = [each.options & MAXIMUM_QOS for each in added]
        if self._hooks.has("subscribed") and session.owner is not None:
            self._hooks.notify("subscribed", client_of(session.owner), names)
        self._emit(
            session.client_id,
            "subscribed",
            lambda prefix: _shown(
                "subscriptions",
                [(name, {"filter": name, "qos": each}) for name, each in zip(_own(names, prefix), qos, strict=True)],
            ),
        )

    def unsubscribed(self, session: Session, topic_filters: Sequence[str]) -> None:
        """A session loses those of the subscriptions that it has."""
        connection = session.owner
        held = [
            name
            for name in topic_filters
            if connection is not None and self._subscribing.has(connection, session, name.encode())
        ]
        if not held:
            return
        if self._hooks.has("unsubscribed"):
            self._hooks.notify("unsubscribed", client_of(connection), held)
        self._emit(
            session.client_id,
            "unsubscribed",
            lambda prefix: _shown("filters", [(name, name) for name in _own(held, prefix)]),
        )

    def detached(self, session: Session) -> None:
        """The end of a connection is `disconnected`, which has the reason."""

    # ---- slow and fast clients ----

    def lost(self, lost: Mapping[bytes, Lost]) -> None:
        """Clients have lost messages: client id -> these messages."""
        now = time.monotonic()
        for client_id, more in lost.items():
            if self._hooks.has("messages_dropped"):
                self._hooks.notify("messages_dropped", client_id.decode(), more.total)
            episode = self._losing.get(client_id)
            if episode is None:
                if len(self._losing) >= MAX_EPISODES:
                    continue
                episode = self._losing[client_id] = Episode(now, now)
            episode.queue_full += more.queue_full
            episode.output_full += more.output_full

    def tick(self) -> None:
        """A quarter of a second has passed."""
        now = time.monotonic()
        if self._losing:
            self._report_losses(now)
        if self._throttled or self._data_plane.reactor.rate_limited:
            self._note_throttled(now)
        self.outbox.tick()

    def _report_losses(self, now: float) -> None:
        for client_id, episode in list(self._losing.items()):
            if episode.until > now:
                continue
            if not episode.queue_full and not episode.output_full:
                del self._losing[client_id]
                continue
            if not self._reads_events(client_id):
                values = {
                    "messages": episode.queue_full + episode.output_full,
                    "queue_full": episode.queue_full,
                    "output_full": episode.output_full,
                }
                self._emit(client_id, "dropped", values)
            self._losing[client_id] = Episode(now + EPISODE_SECONDS, episode.began)

    def _reads_events(self, client_id: bytes) -> bool:
        """Whether a client gets events: then an event of its losses may be lost, too, and so on."""
        session = self._data_plane.sessions.find(client_id)
        held = self._data_plane.sessions.subscriptions_of(session) if session is not None else []
        return any(b"$SYS" in name for name, *_ in held)

    def _note_throttled(self, now: float) -> None:
        for connection in self._data_plane.reactor.rate_limited[:MAX_EPISODES]:
            session = connection.session
            if session is None:
                continue
            episode = self._throttled.get(session.client_id)
            if episode is not None:
                episode.until = now + EPISODE_SECONDS
            elif len(self._throttled) < MAX_EPISODES:
                self._throttled[session.client_id] = Episode(now + EPISODE_SECONDS, now)
                if self._hooks.has("throttled"):
                    self._hooks.notify("throttled", client_of(connection))
                self._emit(session.client_id, "throttled", self._described(connection))
        for client_id in [key for key, episode in self._throttled.items() if episode.until <= now]:
            del self._throttled[client_id]

    # ---- one event ----

    def _emit(self, client_id: bytes, kind: str, values: Callable[[str], Values] | Values) -> None:
        """Publish an event if it has receivers.

        `values`: of its payload, or makes them, given the prefix of its readers' tenant.
        """
        if not self.outbox.rate or self._nobody_reads():
            return
        if client_id.startswith(OF_TENANT):
            prefix, name = split_tenant(client_id)
            self._emit_to(prefix.decode(), prefix + CLIENTS, name, kind, values)
            if not self._of_tenants:
                return
        self._emit_to("", CLIENTS, client_id, kind, values)

    def _nobody_reads(self) -> bool:
        """Whether no event has a receiver, as far as that is known without its topic name."""
        changes = self._filters.changes
        if changes != self._looked_at:
            self._looked_at = changes
            alone = self._nodes.is_alone and not self._data_plane.config.tenants
            self._is_unread = alone and not self._filters.may_reach(ROOT[:-1])
        return self._is_unread

    def _emit_to(
        self, readers: str, head: bytes, name: bytes, kind: str, values: Callable[[str], Values] | Values
    ) -> None:
        if self.outbox.suppresses(readers, kind):
            return
        topic = self._filters.reached(head, name, LAST_LEVELS[kind])
        if topic is not None and self.outbox.has_room(readers, kind):
            node = {} if readers else {"node": self._nodes.node_id}
            more = values(readers) if callable(values) else values
            self.outbox.publish(readers, topic, kind, {"client_id": name.decode(), **node, **more})


def _own(names: Sequence[str], prefix: str) -> list[str]:
    """Topic filters as clients of a tenant write them."""
    return [name.replace(prefix, "", 1) for name in names] if prefix else list(names)


def _shown(key: str, items: Sequence[tuple[str, Any]]) -> Values:
    """The first items, by their names, and the number of the others."""
    shown: list[Any] = []
    size = 0
    for name, item in items[:SHOWN_FILTERS]:
        size += len(name)
        if size > SHOWN_BYTES:
            break
        shown.append(item)
    return {key: shown, "more": len(items) - len(shown)}
