"""SUBSCRIBE: which filters are granted, and what is retained for them."""

from collections.abc import Awaitable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from _speedups.codec.encode import encode
from _speedups.codec.packets import Suback, Subscribe
from _speedups.codec.topics import validate_topic_filter
from _speedups.net.reactor import Connection
from _speedups.session.session import Session
from _speedups.session.turn import COUNTERS
from broker import logs

if TYPE_CHECKING:
    from broker.broker import Broker

SUBSCRIBES_REFUSED = COUNTERS.index("subscribes_refused")
SUBSCRIBE_DENIED = COUNTERS.index("subscribe_denied")
SEARCHES_MOST = 10_000  # filters of one session whose retained messages are still on their way
FAILURE = 0x80  # in SUBACK, from level 4 on

Answers = list[int | str]  # for each filter the QoS granted, or why it is refused

log = logs.get("flockmq.subscribe")


def handle(broker: "Broker", connection: Connection, session: Session, packet: Subscribe) -> None:
    """Subscribe, then say so when it holds everywhere; retained messages follow the SUBACK."""
    if session.sources_waiting > SEARCHES_MOST:
        connection.reject("SUBSCRIBE again and again, without reading what is retained")
        return
    answers: Answers = [_judge(broker, connection, session, *wanted) for wanted in packet.topic_filters]
    if not broker.hooks.hears("subscribe", "authorize"):
        _grant(broker, connection, session, packet, answers)
        return
    asked = [_ask_hooks(broker, connection, *wanted) for wanted in packet.topic_filters]
    if any(map(isawaitable, asked)):
        connection.pause()
        broker.run(_wait(broker, connection, session, packet, answers, asked))
    else:
        _grant(broker, connection, session, packet, list(map(_heard, answers, asked)))


def _judge(broker: "Broker", connection: Connection, session: Session, topic_filter: str, qos: int) -> int | str:
    """The QoS that the client gets, as far as rules and limits are concerned, or why it gets none."""
    limits = broker.config.limits
    try:
        validate_topic_filter(topic_filter, connection.protocol_level, limits.max_topic_levels)
    except ValueError as fault:
        return str(fault)
    if session.subscriptions_held >= limits.max_subscriptions:
        return "too many subscriptions"
    if session.rights is not None and not session.rights.may_subscribe(topic_filter.encode()):
        broker.turn.count(SUBSCRIBE_DENIED)
        return "nothing of this filter may be read"
    return qos


def _ask_hooks(broker: "Broker", connection: Connection, topic_filter: str, qos: int) -> Any:
    client = broker.client_of(connection)
    return broker.hooks.decide(
        qos,
        ("authorize", lambda _: (client, "subscribe", topic_filter)),
        ("subscribe", lambda qos: (client, topic_filter, qos)),
    )


async def _wait(
    broker: "Broker", connection: Connection, session: Session, packet: Subscribe, answers: Answers, asked: list[Any]
) -> None:
    said = [await answer if isinstance(answer, Awaitable) else answer for answer in asked]
    if not connection.closed:
        _grant(broker, connection, session, packet, list(map(_heard, answers, said)))
        connection.proceed()
        broker.settle()


def _heard(answer: int | str, said: object) -> int | str:
    """What the broker answers, given what the hooks say."""
    if isinstance(answer, str):
        return answer
    return min(answer, said) if isinstance(said, int) and said >= 0 else "a hook refuses it"


def _grant(broker: "Broker", connection: Connection, session: Session, packet: Subscribe, answers: Answers) -> None:
    level = connection.protocol_level
    granted: list[tuple[bytes, int]] = []
    for (topic_filter, _), answer in zip(packet.topic_filters, answers, strict=True):
        if isinstance(answer, int):
            granted.append((topic_filter.encode(), answer))
            continue
        broker.turn.count(SUBSCRIBES_REFUSED)
        log.debug("filter refused", client_id=session.client_id.decode(), topic_filter=topic_filter, reason=answer)
        if level == 3:  # has no word for it
            connection.reject(f"SUBSCRIBE: {answer}")
            return
    codes = [answer if isinstance(answer, int) else FAILURE for answer in answers]
    suback = encode(Suback(packet_id=packet.packet_id, reason_codes=codes), level)
    broker.coordinator.subscribe(
        connection, session, granted, partial(_acknowledge, broker, connection, session, suback, granted)
    )


def _acknowledge(
    broker: "Broker", connection: Connection, session: Session, suback: bytes, granted: list[tuple[bytes, int]]
) -> None:
    if connection.session is not session:
        return
    connection.send(suback)
    for name, qos in granted:
        search = broker.router.retained.search(name, qos)
        if search is not None:
            session.draw_from(search)  # for a replaced subscription again [MQTT-3.8.4-3]
