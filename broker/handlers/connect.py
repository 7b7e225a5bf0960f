"""CONNECT: may this client come in, which session does it get, and what becomes of the one before it."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable
from inspect import isawaitable
from typing import TYPE_CHECKING

from _speedups.codec.encode import encode
from _speedups.codec.packets import Connack, Connect
from _speedups.codec.topics import validate_topic_name
from _speedups.net.reactor import Connection
from _speedups.session.session import Session
from _speedups.session.turn import COUNTERS
from broker import logs
from broker.auth.authenticator import Credentials, ReturnCode, Verdict
from broker.hooks.api import REFUSED, Client, Question

if TYPE_CHECKING:
    from broker.broker import Broker

ACCEPTED = COUNTERS.index("connects_accepted")
REFUSALS = COUNTERS.index("connects_refused")
AUTH_FAILURES = COUNTERS.index("auth_failures")
FLAPPING_REFUSED = COUNTERS.index("flapping_refused")
CLIENT_ID_CHARACTERS = 23  # at level 3

UNAVAILABLE = Verdict(ReturnCode.SERVER_UNAVAILABLE, reason="the authenticator failed")
FULL = "its user has too many connections"
WRONG = (ReturnCode.BAD_USERNAME_OR_PASSWORD, ReturnCode.NOT_AUTHORIZED)

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
    if _is_banned(broker, connection, packet.client_id, packet.username):
        return
    if broker.principals.flaps(connection.listener, packet.client_id, connection.address):
        broker.turn.count(FLAPPING_REFUSED)
        refuse(broker, connection, ReturnCode.SERVER_UNAVAILABLE, packet.client_id, "it comes back too often")
        return
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


def refuse(
    broker: "Broker", connection: Connection, code: ReturnCode, client_id: str, reason: str = "", username: str = ""
) -> None:
    """Answer with a return code, and close [MQTT-3.2.2-5]. The reason is for the log only."""
    broker.turn.count(REFUSALS)
    more = {name: text for name, text in (("username", username), ("reason", reason)) if text}
    log.info("connection refused", client_id=client_id, address=connection.address, code=code.name.lower(), **more)
    connection.send(encode(Connack(reason_code=code), 4))
    connection.finish(f"refused: {code.name.lower()}")


def decide(broker: "Broker", connection: Connection, packet: Connect, verdict: Verdict) -> None:
    """The authenticator has spoken."""
    identity, code, reason = verdict.identity, verdict.code, verdict.reason
    if _is_banned(broker, connection, packet.client_id, identity.username):  # by what is known by now
        return
    broker.turn.count(AUTH_FAILURES, code in WRONG)
    if code == ReturnCode.ACCEPTED and packet.will_topic is not None and not _will_is_valid(broker, packet, verdict):
        code, reason = ReturnCode.NOT_AUTHORIZED, "it may not publish its will"
    if code == ReturnCode.ACCEPTED and not broker.principals.has_room(identity, packet.client_id.encode()):
        code, reason = ReturnCode.SERVER_UNAVAILABLE, FULL
    if code != ReturnCode.ACCEPTED:
        refuse(broker, connection, code, packet.client_id, reason, packet.username or "")
        return
    connection.identity = identity
    if not broker.hooks.hears("connect", "authorize"):
        broker.coordinator.claim(connection, packet)
        return
    found = _ask_hooks(broker, connection, packet)
    if isawaitable(found):
        broker.run(_wait_for_hooks(broker, connection, packet, found))
    else:
        _follow_hooks(broker, connection, packet, found)


def _ask_hooks(broker: "Broker", connection: Connection, packet: Connect) -> object:
    """Whether the hooks want the client, and its will: something, or REFUSED."""
    client = Client(packet.client_id, connection.identity.username, connection.address, connection.listener)
    questions: list[Question[Client]] = [("connect", lambda client: (client,))]
    if packet.will_topic is not None:
        questions.append(("authorize", lambda client: (client, "publish", packet.will_topic)))
    return broker.hooks.decide(client, *questions)


async def _wait_for_hooks(broker: "Broker", connection: Connection, packet: Connect, found: Awaitable[object]) -> None:
    settled = await found
    if connection.closed:
        return
    identity = connection.identity
    if not broker.principals.has_room(identity, packet.client_id.encode()):  # others came meanwhile
        refuse(broker, connection, ReturnCode.SERVER_UNAVAILABLE, packet.client_id, FULL, packet.username or "")
    elif not _is_banned(broker, connection, packet.client_id, identity.username):
        _follow_hooks(broker, connection, packet, settled)
    broker.settle()


def _follow_hooks(broker: "Broker", connection: Connection, packet: Connect, found: object) -> None:
    if found is REFUSED:
        refuse(broker, connection, ReturnCode.NOT_AUTHORIZED, packet.client_id)
    else:
        broker.coordinator.claim(connection, packet)


def belongs(session: Session, connection: Connection) -> bool:
    """Whether a session may be this connection's: it is of the same user, or of nobody yet (CVE-2026-6564)."""
    username = connection.identity.username
    return session.user is None or (username is not None and session.user == username.encode())


def refuse_others(broker: "Broker", connection: Connection, packet: Connect) -> None:
    """The session of this client id is another user's, who is left alone."""
    refuse(
        broker,
        connection,
        ReturnCode.NOT_AUTHORIZED,
        packet.client_id,
        "the session of its client id is another user's",
        packet.username or "",
    )


def admit(broker: "Broker", connection: Connection, packet: Connect, session: Session) -> None:
    """The session is this connection's; it may be used after `welcome`."""
    if connection.identity.username is not None:
        session.user = connection.identity.username.encode()
    connection.connect = packet if packet.will_topic is not None else None
    session.owner = connection
    if session.set_rights(connection.identity.rights) and session.subscriptions_held:
        broker.router.filters.forget_plans()
    connection.claimed = session
    broker.sessions.has_connected()
    broker.principals.came(connection)


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
    if not present:
        broker.hooks.tell("session_started", packet.client_id, session.persistent)
    if broker.hooks.hears("connected"):
        broker.hooks.tell("connected", broker.client_of(connection))
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


def _is_banned(broker: "Broker", connection: Connection, client_id: str, username: str | None) -> bool:
    """Whether the client is not to come in, which it is then told."""
    ban = broker.bans.covering(client_id, username, connection.address)
    if ban is not None:
        refuse(broker, connection, ReturnCode.NOT_AUTHORIZED, client_id)
    return ban is not None


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
