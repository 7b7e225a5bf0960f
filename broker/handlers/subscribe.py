"""SUBSCRIBE: which filters are granted, and what is retained for them."""

from typing import TYPE_CHECKING

from _speedups.packets import Suback, Subscribe, encode
from _speedups.reactor import Connection
from _speedups.session import Session
from _speedups.topics import validate_topic_filter
from _speedups.turn import COUNTERS

if TYPE_CHECKING:
    from broker.broker import Broker

SUBSCRIBES_REFUSED = COUNTERS.index("subscribes_refused")
SEARCHES_MOST = 10_000  # filters of one session whose retained messages are still on their way
SUBSCRIBE_DENIED = COUNTERS.index("subscribe_denied")
FAILURE = 0x80  # in SUBACK, from level 4 on


def handle(broker: "Broker", connection: Connection, session: Session, packet: Subscribe) -> None:
    """Subscribe, then say so when it holds everywhere; retained messages follow the SUBACK."""
    level = connection.protocol_level
    if session.sources_waiting > SEARCHES_MOST:
        connection.reject("SUBSCRIBE again and again, without reading what is retained")
        return
    granted: list[tuple[bytes, int]] = []
    codes: list[int] = []
    for topic_filter, qos in packet.topic_filters:
        try:
            validate_topic_filter(topic_filter, level, broker.config.limits.max_topic_levels)
            if session.subscriptions_held >= broker.config.limits.max_subscriptions:
                raise ValueError("too many subscriptions")
            if session.rights is not None and not session.rights.may_subscribe(topic_filter.encode()):
                broker.turn.count(SUBSCRIBE_DENIED)
                raise ValueError("nothing of this filter may be read")
        except ValueError as fault:
            broker.turn.count(SUBSCRIBES_REFUSED)
            if level == 3:  # has no word for it
                connection.reject(f"SUBSCRIBE: {fault}")
                return
            codes.append(FAILURE)
        else:
            codes.append(qos)
            granted.append((topic_filter.encode(), qos))

    def acknowledge() -> None:
        if connection.session is not session:
            return
        connection.send(encode(Suback(packet_id=packet.packet_id, reason_codes=codes), level))
        for name, qos in granted:
            search = broker.router.retained.search(name, qos)
            if search is not None:
                session.draw_from(search)  # for a replaced subscription again [MQTT-3.8.4-3]

    broker.coordinator.subscribe(connection, session, granted, acknowledge)
