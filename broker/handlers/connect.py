"""CONNECT: may this client come in, which session does it get, and what becomes of the one before it."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from _speedups.packets import Connack, Connect, encode
from _speedups.reactor import Connection
from _speedups.session import Session
from _speedups.topics import validate_topic_name
from _speedups.turn import COUNTERS
from broker import logs
from broker.auth.authenticator import Credentials, ReturnCode, Verdict

if TYPE_CHECKING:
    from broker.broker import Broker

ACCEPTED = COUNTERS.index("connects_accepted")
REFUSED = COUNTERS.index("connects_refused")
CLIENT_ID_CHARACTERS = 23  # at level 3

UNAVAILABLE = Verdict(ReturnCode.SERVER_UNAVAILABLE)

log = logs.get("flockmq.connect")
_made_up = itertools.count(1)
_prefix = secrets.token_hex(4)  # client ids that we make up are unique over restarts too


def handle(broker: "Broker", connection: Connection, packet: Connect | None) -> None:
    """Decide over a CONNECT packet; None stands for one of an unknown protocol [MQTT-3.1.2-2]."""
    if packet is None or packet.protocol_level > 4:
        refuse(broker, connection, ReturnCode.UNACCEPTABLE_PROTOCOL, "")
        return
    if packet.protocol_level == 3:
        if not packet.client_id or (
            len(packet.client_id) > CLIENT_ID_CHARACTERS and not broker.config.mqtt.long_client_ids
        ):
            refuse(broker, connection, ReturnCode.IDENTIFIER_REJECTED, packet.client_id)
            return
    elif not packet.client_id:
        if not packet.clean_start:  # [MQTT-3.1.3-8]
            refuse(broker, connection, ReturnCode.IDENTIFIER_REJECTED, "")
            return
        packet.client_id = f"flockmq-{_prefix}-{next(_made_up)}"  # [MQTT-3.1.3-6]
    credentials = Credentials(
        packet.client_id,
        packet.username,
        packet.password,
        connection.address,
        packet.protocol_level,
        connection.listener,
        connection.certificate,
    )
    try:
        answer = broker.authenticator.authenticate(credentials)
    except Exception:
        log.exception("the authenticator failed", client_id=packet.client_id)
        answer = UNAVAILABLE
    if isinstance(answer, Verdict):
        decide(broker, connection, packet, answer)
    else:
        broker.run(_wait(broker, connection, packet, answer))


async def _wait(broker: "Broker", connection: Connection, packet: Connect, answer: Awaitable[Verdict]) -> None:
    try:
        verdict = await answer
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("the authenticator failed", client_id=packet.client_id)
        verdict = UNAVAILABLE
    if not connection.closed:
        decide(broker, connection, packet, verdict)
        broker.settle()


def refuse(broker: "Broker", connection: Connection, code: ReturnCode, client_id: str) -> None:
    """Answer with a return code, and close [MQTT-3.2.2-5]."""
    broker.turn.count(REFUSED)
    log.info("connection refused", client_id=client_id, address=connection.address, code=code.name.lower())
    connection.send(encode(Connack(reason_code=code), 4))
    connection.finish(f"refused: {code.name.lower()}")


def decide(broker: "Broker", connection: Connection, packet: Connect, verdict: Verdict) -> None:
    """The authenticator has spoken."""
    code = verdict.code
    if code == ReturnCode.ACCEPTED and packet.will_topic is not None and not _will_is_valid(broker, packet, verdict):
        code = ReturnCode.NOT_AUTHORIZED
    if code != ReturnCode.ACCEPTED:
        refuse(broker, connection, code, packet.client_id)
        return
    connection.identity = verdict.identity
    broker.coordinator.claim(connection, packet)


def admit(broker: "Broker", connection: Connection, packet: Connect, session: Session) -> None:
    """The session is this connection's; it may be used after `welcome`."""
    connection.connect = packet if packet.will_topic is not None else None
    session.owner = connection
    if session.set_rights(connection.identity.rights) and session.subscriptions_held:
        broker.router.filters.forget_plans()
    connection.claimed = session
    broker.sessions.has_connected()


def welcome(broker: "Broker", connection: Connection, packet: Connect, session: Session, *, present: bool) -> None:
    """The store has what it must have: say CONNACK, then let packets flow."""
    if connection.closed or session.owner is not connection:
        return
    level = packet.protocol_level
    keep_alive = float(packet.keep_alive)
    cap = broker.config.limits.max_keep_alive
    if cap and (keep_alive == 0 or keep_alive > cap):
        keep_alive = cap
    # Level 3 has no Session Present: the byte is reserved there.
    connection.send(encode(Connack(session_present=present and level > 3, reason_code=ReturnCode.ACCEPTED), 4))
    connection.accept(session, level, keep_alive)
    connection.proceed()
    broker.turn.count(ACCEPTED)
    if log.enabled(logs.DEBUG):
        log.debug(
            "client connected",
            client_id=packet.client_id,
            address=connection.address,
            listener=connection.listener,
            transport=connection.transport,
            certificate=connection.certificate,
            level=level,
            clean=packet.clean_start,
            keep_alive=packet.keep_alive,
            session_present=present,
        )


def _will_is_valid(broker: "Broker", packet: Connect, verdict: Verdict) -> bool:
    """A will may go where its client could publish."""
    topic = packet.will_topic or ""
    try:
        validate_topic_name(topic, packet.protocol_level, broker.config.limits.max_topic_levels)
    except ValueError:
        return False
    if topic == "$SYS" or topic.startswith("$SYS/"):
        return False
    rights = verdict.identity.rights
    return rights is None or rights.may_publish(topic.encode())
