"""SUBSCRIBE: grants or refuses topic filters, and sends the retained messages that match them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Suback, Subscribe
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.codec.topics import (
    filter_weight,
    has_control_characters,
    validate_topic_filter,
)
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.protocol.close_reasons import CloseReason
from ..._speedups.session.counters import SUBSCRIBE_DENIED, SUBSCRIBES_REFUSED
from ..._speedups.session.session import Session
from ..._speedups.session.tenant import Tenant
from .. import logs
from ..coordination.coordinator import Subscribing
from ..core import tenants
from ..core.auto_subscriptions import subscriptions_of
from ..core.data_plane import DataPlane
from ..core.session_follower import Followers, Subscription
from ..core.subscription_options import MAXIMUM_QOS, NO_LOCAL, RETAIN_AS_PUBLISHED
from ..core.topic_filters import is_of_tenant, is_stream, max_levels, parts_of, qualified
from ..hooks.chain import HookChain, Refused, client_of
from ..streams.start_position import parse_since
from ..streams.streams import Streams
from .refusal import Refusal

MAX_SEARCHES = 10_000  # filters of one session whose retained messages are still to be sent
FAILURE = 0x80  # in SUBACK at level 4
NO_LOG = "no log of messages to read a stream from: analytics.topics keeps one"
NOTHING = "nothing of this filter may be read"
MAX_REASONS = 16  # user properties of a SUBACK with the reasons of refusals


class Grant(NamedTuple):
    """A filter is granted."""

    options: int
    is_new: bool


@dataclass(slots=True)
class Added:
    """Wanted filters for which the session has no subscription yet."""

    names: set[str] = field(default_factory=set)
    weight: int = 0
    size: int = 0  # bytes that they will take


Grants = list[Grant | Refusal]  # for each filter of a packet
Wanted = list[tuple[str, int]]  # topic filters, and the options of their subscriptions
Then = Callable[[Grants], None]

log = logs.get("flockmq.subscribe")


class SubscribeHandler:
    """Subscribes sessions.

    Args:
        data_plane: of the node.
        subscribing: adds subscriptions.
        hooks: called for each filter.
        streams: of the node; they have a limit.
        followers: of the sessions.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        subscribing: Subscribing,
        hooks: HookChain,
        streams: Streams,
        followers: Followers,
    ) -> None:
        self._data_plane = data_plane
        self._turn = data_plane.turn
        self._subscribing = subscribing
        self._hooks = hooks
        self._streams = streams
        self._followers = followers

    def handle(self, connection: Connection, session: Session, packet: Subscribe) -> None:
        """Subscribe; SUBACK follows when the subscriptions hold everywhere, and retained messages follow SUBACK."""
        if session.sources_waiting > MAX_SEARCHES:
            connection.reject(close_reasons.TOO_MANY_SEARCHES)
            return
        rewriter = self._data_plane.rewriter
        if rewriter is not None:  # before rights: a rule for a topic covers all that clients read there
            client_id = tenants.split(session.client_id)[1]
            packet.topic_filters = [
                (rewriter.topic_filter(connection, client_id, name), options) for name, options in packet.topic_filters
            ]
        packet.topic_filters = [(qualified(session.client_id, name), options) for name, options in packet.topic_filters]
        self._decide(connection, session, packet.topic_filters, partial(self._subscribe, connection, session, packet))

    def subscribe_configured(self, connection: Connection, session: Session) -> None:
        """Add the subscriptions that the configuration has for a client that has connected, and that it lacks."""
        rules = self._data_plane.config.mqtt.auto_subscribe
        found = subscriptions_of(rules, connection, tenants.split(session.client_id)[1])
        wanted = [
            (name, options)
            for name, options in ((qualified(session.client_id, name), options) for name, options in found.items())
            if not self._subscribing.has(connection, session, name.encode())
        ]
        if wanted:
            self._decide(connection, session, wanted, partial(self._add_configured, connection, session, wanted))

    def _decide(self, connection: Connection, session: Session, wanted: Wanted, then: Then) -> None:
        """Call `then` with the decisions of rules, limits and hooks over the wanted filters."""
        added = Added()
        grants: Grants = [self._grant(connection, session, *each, added) for each in wanted]
        if not self._hooks.has("subscribe", "authorize"):
            then(grants)
            return
        found = [self._call_hooks(connection, *each) for each in wanted]
        if any(map(isawaitable, found)):
            connection.pause()
            self._data_plane.run(self._wait(connection, grants, found, then))
        else:
            then(list(map(_after_hooks, grants, found)))

    def _grant(
        self, connection: Connection, session: Session, topic_filter: str, options: int, added: Added
    ) -> Grant | Refusal:
        """The options that rules and limits allow, or a refusal."""
        limits = self._data_plane.config.limits
        levels = max_levels(session.client_id, limits.max_topic_levels)
        try:
            validate_topic_filter(topic_filter, connection.protocol_level, levels)
            share, since, messages = parts_of(topic_filter)
            if since:
                parse_since(since, 0)
                validate_topic_filter(messages, connection.protocol_level, levels)
        except ValueError as fault:
            return Refusal(ReasonCode.TOPIC_FILTER_INVALID, str(fault))
        if since and (refusal := self._stream_refusal(session, topic_filter, added)) is not None:
            return refusal
        if not is_of_tenant(session.client_id, messages):
            return Refusal(ReasonCode.NOT_AUTHORIZED, NOTHING)
        if has_control_characters(topic_filter) and not self._data_plane.config.mqtt.control_characters:
            return Refusal(ReasonCode.TOPIC_FILTER_INVALID, "a control character in the topic filter")
        if session.rights is not None and not session.rights.may_subscribe(messages.encode()):
            self._turn.count(SUBSCRIBE_DENIED)
            return Refusal(ReasonCode.NOT_AUTHORIZED, NOTHING)
        is_new = topic_filter not in added.names and not self._subscribing.has(
            connection, session, topic_filter.encode()
        )
        if is_new:
            name = topic_filter.encode()
            weight, size = filter_weight(name), self._data_plane.router.filters.bytes_of(name)
            held = self._subscribing.weight_of(connection, session) + added.weight
            if held + weight > limits.max_subscriptions or _has_too_many(session.tenant, len(added.names)):
                return Refusal(ReasonCode.QUOTA_EXCEEDED, "too many subscriptions")
            if self._take_too_much(session.tenant, added.size + size):
                return Refusal(ReasonCode.QUOTA_EXCEEDED, "all subscriptions take too much memory")
            added.names.add(topic_filter)
            added.weight += weight
            added.size += size
        if connection.bridge and not share:
            options |= NO_LOCAL | RETAIN_AS_PUBLISHED
        qos = min(options & MAXIMUM_QOS, connection.maximum_qos)  # [5: MQTT-3.2.2-10]
        return Grant(options & ~MAXIMUM_QOS | qos, is_new)

    def _stream_refusal(self, session: Session, topic_filter: str, added: Added) -> Refusal | None:
        """The refusal of a stream that the node can't serve, or that is one too many."""
        if not self._streams.available:
            return Refusal(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, NO_LOG)
        streams = self._streams.names(session) | {name for name in added.names if is_stream(name)} - {topic_filter}
        if topic_filter not in streams and len(streams) >= self._data_plane.config.limits.max_streams:
            return Refusal(ReasonCode.QUOTA_EXCEEDED, "too many streams")
        return None

    def _take_too_much(self, tenant: Tenant | None, size: int) -> bool:
        """Whether more subscriptions of this size are too much for the node, or for the tenant if there is one."""
        limit = self._data_plane.config.limits.max_subscription_bytes
        return self._data_plane.router.filters.size + size > limit or (
            tenant is not None and 0 < tenant.max_subscription_bytes < tenant.subscription_bytes + size
        )

    def _call_hooks(self, connection: Connection, topic_filter: str, options: int) -> Any:
        client = client_of(connection)
        return self._hooks.filter(
            options & MAXIMUM_QOS,
            ("authorize", lambda _: (client, "subscribe", topic_filter)),
            ("subscribe", lambda qos: (client, topic_filter, qos)),
        )

    async def _wait(self, connection: Connection, grants: Grants, found: list[Any], then: Then) -> None:
        settled = [await answer if isinstance(answer, Awaitable) else answer for answer in found]
        if not connection.closed:
            then(list(map(_after_hooks, grants, settled)))
            connection.proceed()
            self._data_plane.end_turn()

    def _subscribe(self, connection: Connection, session: Session, packet: Subscribe, grants: Grants) -> None:
        level = connection.protocol_level
        identifier = packet.properties.get("subscription_identifier", 0)
        added: list[Subscription] = []
        refused: list[tuple[str, str]] = []
        for number, ((topic_filter, _), grant) in enumerate(zip(packet.topic_filters, grants, strict=True), 1):
            if isinstance(grant, Grant):
                added.append(Subscription(topic_filter.encode(), grant.options, identifier, grant.is_new))
                continue
            self._count_refusal(session, topic_filter, grant)
            refused.append((f"filter {number}", grant.reason))
            if level == 3:  # has no failure code
                connection.reject(CloseReason(None, f"SUBSCRIBE: {grant.reason}"))
                return
        suback = self._suback(connection, packet, grants, refused)
        if connection.takes(suback, close_reasons.SUBACK_TOO_LARGE):
            self._add(
                connection, session, added, packet, partial(self._acknowledge, connection, session, suback, added)
            )

    def _add(
        self,
        connection: Connection,
        session: Session,
        added: list[Subscription],
        packet: Subscribe | None,
        done: Callable[[], object],
    ) -> None:
        """Add granted subscriptions; `done` is called when they hold everywhere."""
        for follower in self._followers:
            follower.subscribing(session, added, packet)
        filters = [(each.name, each.options) for each in added]
        identifier = added[0].identifier if added else 0  # the packet's
        self._subscribing.subscribe(connection, session, filters, identifier, done)

    def _count_refusal(self, session: Session, topic_filter: str, refusal: Refusal) -> None:
        self._turn.count(SUBSCRIBES_REFUSED)
        client_id = session.client_id.decode()
        log.debug("filter refused", client_id=client_id, topic_filter=topic_filter, reason=refusal.reason)

    def _add_configured(self, connection: Connection, session: Session, wanted: Wanted, grants: Grants) -> None:
        added: list[Subscription] = []
        for (topic_filter, _), grant in zip(wanted, grants, strict=True):
            if isinstance(grant, Grant):
                added.append(Subscription(topic_filter.encode(), grant.options, 0, grant.is_new))
            else:
                self._count_refusal(session, topic_filter, grant)
        if added:
            self._add(connection, session, added, None, partial(self._begin, connection, session, added))

    def _suback(
        self, connection: Connection, packet: Subscribe, grants: Grants, refused: list[tuple[str, str]]
    ) -> bytes:
        level = connection.protocol_level
        codes = [grant.options & MAXIMUM_QOS if isinstance(grant, Grant) else grant.code for grant in grants]
        if level < 5:
            codes = [code if code < FAILURE else FAILURE for code in codes]
        properties: dict[str, Any] = {}
        if refused and connection.wants_reasons:
            properties = {"reason_string": refused[0][1], "user_property": refused[:MAX_REASONS]}
        suback = encode(Suback(packet_id=packet.packet_id, reason_codes=codes, properties=properties), level)
        if properties and len(suback) > connection.maximum_packet_size:  # [5: MQTT-3.9.2-1, 2]
            suback = encode(Suback(packet_id=packet.packet_id, reason_codes=codes), level)
        return suback

    def _acknowledge(self, connection: Connection, session: Session, suback: bytes, added: list[Subscription]) -> None:
        if connection.session is session:
            connection.send(suback)
            self._begin(connection, session, added)

    def _begin(self, connection: Connection, session: Session, added: list[Subscription]) -> None:
        """The subscriptions hold everywhere: let their first messages follow."""
        if connection.session is not session:
            return
        has = partial(self._subscribing.has, connection, session)
        held = [each for each in added if has(each.name)]  # UNSUBSCRIBE may have followed before SUBACK
        for follower in self._followers:
            follower.subscribed(session, held)


def _has_too_many(tenant: Tenant | None, added: int) -> bool:
    """Whether a tenant, if there is one, has all the subscriptions that it may have."""
    return tenant is not None and 0 < tenant.max_subscriptions <= tenant.subscriptions + added


def _after_hooks(grant: Grant | Refusal, found: object) -> Grant | Refusal:
    """A grant, after the hooks have decided."""
    if isinstance(grant, Refusal):
        return grant
    if isinstance(found, Refused):
        return Refusal(found.code_of(Suback.packet_type), found.reason)
    if not isinstance(found, int) or found < 0:
        return Refusal(ReasonCode.UNSPECIFIED_ERROR, "a hook returned no QoS")
    return grant._replace(options=grant.options & ~MAXIMUM_QOS | min(grant.options & MAXIMUM_QOS, found))
