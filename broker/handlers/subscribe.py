"""SUBSCRIBE: grants or refuses topic filters, and sends the retained messages that match them."""

from collections.abc import Awaitable
from functools import partial
from inspect import isawaitable
from typing import Any

from _speedups.codec.encode import encode
from _speedups.codec.packets import Suback, Subscribe
from _speedups.codec.topics import has_control_characters, validate_topic_filter
from _speedups.net.connection import Connection
from _speedups.protocol import close_reasons
from _speedups.session.counters import SUBSCRIBE_DENIED, SUBSCRIBES_REFUSED
from _speedups.session.session import Session
from broker import logs
from broker.coordination.coordinator import Coordinator
from broker.core.data_plane import DataPlane
from broker.hooks.chain import HookChain, client_of

MAX_SEARCHES = 10_000  # filters of one session whose retained messages are still to be sent
FAILURE = 0x80  # in SUBACK, from level 4 on

Grants = list[int | str]  # for each filter the QoS granted, or the reason of a refusal

log = logs.get("flockmq.subscribe")


class SubscribeHandler:
    """Subscribes sessions.

    Args:
        data_plane: of the node.
        coordinator: adds subscriptions.
        hooks: called for each filter.
    """

    def __init__(self, data_plane: DataPlane, coordinator: Coordinator, hooks: HookChain) -> None:
        self._data_plane = data_plane
        self._turn = data_plane.turn
        self._coordinator = coordinator
        self._hooks = hooks

    def handle(self, connection: Connection, session: Session, packet: Subscribe) -> None:
        """Subscribe; SUBACK follows when the subscriptions hold everywhere, and retained messages follow SUBACK."""
        if session.sources_waiting > MAX_SEARCHES:
            connection.reject(close_reasons.TOO_MANY_SEARCHES)
            return
        added: set[str] = set()  # filters of this packet for which the session has no subscription yet
        grants: Grants = [self._grant(connection, session, *wanted, added) for wanted in packet.topic_filters]
        if not self._hooks.has("subscribe", "authorize"):
            self._subscribe(connection, session, packet, grants)
            return
        found = [self._call_hooks(connection, *wanted) for wanted in packet.topic_filters]
        if any(map(isawaitable, found)):
            connection.pause()
            self._data_plane.run(self._wait(connection, session, packet, grants, found))
        else:
            self._subscribe(connection, session, packet, list(map(_after_hooks, grants, found)))

    def _grant(
        self, connection: Connection, session: Session, topic_filter: str, qos: int, added: set[str]
    ) -> int | str:
        """The QoS that rules and limits allow, or the reason of a refusal."""
        limits = self._data_plane.config.limits
        try:
            validate_topic_filter(topic_filter, connection.protocol_level, limits.max_topic_levels)
        except ValueError as fault:
            return str(fault)
        if has_control_characters(topic_filter) and not self._data_plane.config.mqtt.control_characters:
            return "a control character in the topic filter"
        if session.rights is not None and not session.rights.may_subscribe(topic_filter.encode()):
            self._turn.count(SUBSCRIBE_DENIED)
            return "nothing of this filter may be read"
        if topic_filter not in added and not self._data_plane.router.filters.has(session, topic_filter.encode()):
            if session.subscriptions_held + len(added) >= limits.max_subscriptions:
                return "too many subscriptions"
            added.add(topic_filter)
        return qos

    def _call_hooks(self, connection: Connection, topic_filter: str, qos: int) -> Any:
        client = client_of(connection)
        return self._hooks.filter(
            qos,
            ("authorize", lambda _: (client, "subscribe", topic_filter)),
            ("subscribe", lambda qos: (client, topic_filter, qos)),
        )

    async def _wait(
        self, connection: Connection, session: Session, packet: Subscribe, grants: Grants, found: list[Any]
    ) -> None:
        settled = [await answer if isinstance(answer, Awaitable) else answer for answer in found]
        if not connection.closed:
            self._subscribe(connection, session, packet, list(map(_after_hooks, grants, settled)))
            connection.proceed()
            self._data_plane.end_turn()

    def _subscribe(self, connection: Connection, session: Session, packet: Subscribe, grants: Grants) -> None:
        level = connection.protocol_level
        granted: list[tuple[bytes, int]] = []
        for (topic_filter, _), grant in zip(packet.topic_filters, grants, strict=True):
            if isinstance(grant, int):
                granted.append((topic_filter.encode(), grant))
                continue
            self._turn.count(SUBSCRIBES_REFUSED)
            log.debug("filter refused", client_id=session.client_id.decode(), topic_filter=topic_filter, reason=grant)
            if level == 3:  # has no failure code
                connection.reject(f"SUBSCRIBE: {grant}")
                return
        codes = [grant if isinstance(grant, int) else FAILURE for grant in grants]
        suback = encode(Suback(packet_id=packet.packet_id, reason_codes=codes), level)
        done = partial(self._acknowledge, connection, session, suback, granted)
        self._coordinator.subscribe(connection, session, granted, done)

    def _acknowledge(
        self, connection: Connection, session: Session, suback: bytes, granted: list[tuple[bytes, int]]
    ) -> None:
        if connection.session is not session:
            return
        connection.send(suback)
        for name, qos in granted:
            search = self._data_plane.router.retained.search(name, qos)
            if search is not None:
                session.pull_from(search)  # for a replaced subscription again [MQTT-3.8.4-3]


def _after_hooks(grant: int | str, found: object) -> int | str:
    """A grant, after the hooks have decided."""
    if isinstance(grant, str):
        return grant
    return min(grant, found) if isinstance(found, int) and found >= 0 else "a hook refuses it"
