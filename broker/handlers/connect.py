"""CONNECT: authenticates the client, resolves its session, and takes over an existing connection."""

import math
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, TypedDict

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connack, Connect
from ..._speedups.codec.reason_codes import return_code
from ..._speedups.codec.topics import has_control_characters, is_broker_only, validate_topic_name
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.protocol.channel import STATE_TOPIC
from ..._speedups.protocol.close_reasons import CloseReason
from ..._speedups.routing.delayed import split_delayed
from ..._speedups.session.counters import AUTH_FAILURES, CONNECTS_ACCEPTED, CONNECTS_REFUSED, FLAPPING_REFUSED
from ..._speedups.session.session import Session
from .. import logs
from ..auth.authenticator import Identity, ReasonCode, Verdict
from ..auth.bans import Bans
from ..auth.connected_users import ConnectedUsers
from ..auth.flapping import Flapping
from ..config.link import CLIENT_ID_PREFIX, HOP, LISTENER, WANTED
from ..coordination.admission import Admission
from ..coordination.coordinator import Coordinator
from ..core import tenants
from ..core.data_plane import DataPlane, report
from ..core.redirect import Redirect
from ..core.retained_searches import RetainedSearches
from ..core.secret import Secret
from ..hooks.api import Client
from ..hooks.chain import HookChain, Question, Refused, client_of
from ..interest.guests import Guests, offers
from ..streams.streams import Streams
from .auth import WRONG, AuthHandler

CLIENT_ID_CHARACTERS = 23  # at level 3
ASSIGNED = "assigned_client_identifier"
LONGEST = 65_535  # bytes of a text in MQTT

WITH_CLIENT = ("authorize", "publish", "subscribe", "connected", "disconnected")  # hooks called with a `Client` later
MAX_NUMBER = 1 << 32  # of CONNECT packets: then they are counted anew
LINK = Identity(method="link", listener=LISTENER)  # of the links of this node
SILENT = (*WRONG, ReasonCode.BANNED)  # refusals whose reason is for the log only

log = logs.get("flockmq.connect")


class _Capabilities(TypedDict, total=False):
    """Arguments of `accept`: the messages that are taken from a client."""

    maximum_qos: int
    retain_available: bool
    link: bool


class ConnectHandler(Admission):
    """Decides over CONNECT packets, and sends CONNACK.

    Args:
        data_plane: of the node.
        coordinator: resolves sessions.
        auth: authenticates clients.
        bans: of clients, users and networks.
        connected_users: limits connections per user.
        flapping: limits how often a client connects.
        hooks: called for each client that the authenticator accepts.
        redirect: sends clients to other servers.
        secret: of the node.
        streams: of the node.
        retained_searches: of the node.
        guests: of the node.
        subscribe: adds the subscriptions of the configuration to the session of a client that has connected.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        coordinator: Coordinator,
        auth: AuthHandler,
        bans: Bans,
        connected_users: ConnectedUsers,
        flapping: Flapping,
        hooks: HookChain,
        redirect: Redirect,
        secret: Secret,
        streams: Streams,
        retained_searches: RetainedSearches,
        guests: Guests,
        subscribe: Callable[[Connection, Session], None],
    ) -> None:
        self._data_plane = data_plane
        self._turn = data_plane.turn
        self._coordinator = coordinator
        self._auth = auth
        self._bans = bans
        self._connected_users = connected_users
        self._flapping = flapping
        self._hooks = hooks
        self._redirect = redirect
        self._secret = secret
        self._streams = streams
        self._retained_searches = retained_searches
        self._guests = guests
        self._subscribe = subscribe
        self._connects = 0  # that have arrived
        self._prefix = f"flockmq-{secrets.token_hex(4)}-"  # assigned client ids are unique over restarts too

    def handle(self, connection: Connection, packet: Connect | None) -> None:
        """Decide over a CONNECT packet; None stands for one of an unknown protocol [MQTT-3.1.2-2]."""
        if packet is None:
            self.refuse(connection, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "")
            return
        connection.limit_output(packet.properties.get("maximum_packet_size", 0))
        self._connects = (self._connects + 1) % MAX_NUMBER
        connection.connect_number = self._connects
        if connection.listener == LISTENER:
            connection.identity, connection.connect = LINK, packet
            self._coordinator.claim(self, connection, packet)
            return
        fault = self._fault_of_client_id(packet)
        if fault:
            self.refuse(connection, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, packet.client_id, fault)
            return
        if not self._is_text_valid(packet.username or ""):
            connection.reject(close_reasons.CONNECT_USER_NAME)
            return
        if not packet.client_id:
            # [MQTT-3.1.3-6]. At random, since numbers would tell one tenant of the clients of others.
            packet.client_id = f"{self._prefix}{secrets.token_hex(8)}"
            packet.properties[ASSIGNED] = packet.client_id  # for CONNACK; no client can send this property
        # With tenants, a client identifier means nothing until the client's tenant is known.
        known = None if self._data_plane.config.tenants else packet.client_id
        if self._is_banned(connection, packet.client_id, known, packet.username):
            return
        if known is not None and self._connects_too_often(connection, known):
            return
        elsewhere = self._redirect.reason() if packet.protocol_level == 5 else None
        if elsewhere is not None:
            self._send_elsewhere(connection, packet, elsewhere)
            return
        if self._redirect.closed:
            self.refuse(connection, ReasonCode.SERVER_UNAVAILABLE, packet.client_id, "the node is drained")
            return
        self._auth.authenticate(connection, packet, partial(self._decide, connection, packet))

    def _connects_too_often(self, connection: Connection, client_id: str) -> bool:
        """Whether the client connects too often; if so, it is refused."""
        refused = self._flapping.refuses(connection.listener, client_id, connection.address)
        if refused:
            self._turn.count(FLAPPING_REFUSED)
            self.refuse(connection, ReasonCode.CONNECTION_RATE_EXCEEDED, client_id, "it connects too often")
        return refused

    def _is_text_valid(self, text: str) -> bool:
        return self._data_plane.config.mqtt.control_characters or not has_control_characters(text)

    def _fault_of_client_id(self, packet: Connect) -> str:
        """The reason not to accept a client identifier; empty: it is valid."""
        client_id, level = packet.client_id, packet.protocol_level
        if client_id.startswith((CLIENT_ID_PREFIX, tenants.ROOT)):
            return f"identifiers that begin with {client_id.partition('/')[0]}/ are the broker's own"
        if not self._is_text_valid(client_id):
            return "control characters or non-characters; mqtt.control_characters = true accepts them"
        if level == 3 and len(client_id) > CLIENT_ID_CHARACTERS and not self._data_plane.config.mqtt.long_client_ids:
            return f"above the {CLIENT_ID_CHARACTERS} characters of MQTT 3.1; mqtt.long_client_ids = true accepts it"
        if not client_id and level == 3:
            return "it is empty: MQTT 3.1 knows no such identifier"
        if not client_id and level == 4 and not packet.clean_start:  # [MQTT-3.1.3-8]
            return "it is empty, and clean session is 0"
        return ""

    def _decide(self, connection: Connection, packet: Connect, verdict: Verdict) -> None:
        """Act on the verdict of the authenticator."""
        identity, code, reason = verdict.identity, verdict.code, verdict.reason
        prefix = tenants.prefix_of(identity.tenant)
        client_id = prefix + packet.client_id
        if self._is_banned(connection, client_id, client_id, identity.username, identity.tenant):  # it may be new
            return
        with_tenants = code == ReasonCode.ACCEPTED and self._data_plane.config.tenants
        if with_tenants and self._connects_too_often(connection, client_id):
            return
        self._turn.count(AUTH_FAILURES, code in WRONG)
        if code == ReasonCode.ACCEPTED and packet.will_topic is not None:
            self._rewrite_will(connection, packet, packet.will_topic, identity.username)
            code, reason = self._judge_will(packet, packet.will_topic, identity)
        if code == ReasonCode.ACCEPTED and prefix and not _give_prefix(packet, prefix):
            code, reason = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "its identifier or the topic of its will is too long"
        if code == ReasonCode.ACCEPTED:
            full = self._connected_users.lacks_room(identity, packet.client_id.encode())
            code, reason = (ReasonCode.QUOTA_EXCEEDED, full) if full else (code, reason)
        if code != ReasonCode.ACCEPTED:
            self.refuse(connection, code, packet.client_id, reason, packet.username or "")
            return
        connection.identity, connection.connect = identity, packet
        if not self._hooks.has("connect", "authorize"):
            self._claim(connection, packet)
            return
        found = self._call_hooks(connection, packet)
        if isawaitable(found):
            self._data_plane.run(self._wait_for_hooks(connection, packet, found))
        else:
            self._after_hooks(connection, packet, found)

    def _call_hooks(self, connection: Connection, packet: Connect) -> object:
        """Whether the hooks accept the client and its will: Refused, or any other object."""
        client = Client(
            packet.client_id,
            connection.identity.username,
            connection.address,
            connection.listener,
            packet.protocol_level,
            _shown(packet),
        )
        questions: list[Question[Client]] = [("connect", lambda client: (client,))]
        if packet.will_topic is not None:
            topic = split_delayed(packet.will_topic.encode())[1].decode()
            questions.append(("authorize", lambda client: (client, "publish", topic)))
        return self._hooks.filter(client, *questions)

    async def _wait_for_hooks(self, connection: Connection, packet: Connect, found: Awaitable[object]) -> None:
        settled = await found
        if connection.closed:
            return
        identity = connection.identity
        full = self._connected_users.lacks_room(identity, packet.client_id.encode())  # others connected meanwhile
        if full:
            self.refuse(connection, ReasonCode.QUOTA_EXCEEDED, packet.client_id, full, packet.username or "")
        elif not self._is_banned(connection, packet.client_id, packet.client_id, identity.username, identity.tenant):
            self._after_hooks(connection, packet, settled)
        self._data_plane.end_turn()

    def _after_hooks(self, connection: Connection, packet: Connect, found: object) -> None:
        if isinstance(found, Refused):
            reason = "" if found.refusal is None else found.reason
            self.refuse(connection, found.code_of(Connack.packet_type), packet.client_id, reason)
        else:
            self._claim(connection, packet)

    def _claim(self, connection: Connection, packet: Connect) -> None:
        """Nothing stands against the client but the state of its session."""
        session = self._data_plane.sessions.get(packet.client_id.encode())
        owner = None if session is None else session.owner
        if owner is not None and owner.is_newer_than(connection):
            connection.close(close_reasons.TAKEN_OVER)  # its client has connected again while hooks decided over it
            return
        self._connected_users.on_claiming(connection, packet.client_id.encode())
        self._coordinator.claim(self, connection, packet)

    def _is_banned(
        self, connection: Connection, shown: str, client_id: str | None, username: str | None, tenant: str = ""
    ) -> bool:
        """Whether the client is banned; if so, it is refused, and logged with the client identifier `shown`."""
        ban = self._bans.covering(client_id, username, connection.address, tenant)
        if ban is not None:
            self.refuse(connection, ReasonCode.BANNED, shown)
        return ban is not None

    def _judge_will(self, packet: Connect, topic: str, identity: Identity) -> tuple[ReasonCode, str]:
        """Whether the client could publish its will: ACCEPTED, or the code of CONNACK and the reason."""
        mqtt, limits = self._data_plane.config.mqtt, self._data_plane.config.limits
        try:
            validate_topic_name(topic, packet.protocol_level, limits.max_topic_levels)
            delay, name = split_delayed(topic.encode())
        except ValueError as error:
            return ReasonCode.TOPIC_NAME_INVALID, f"its will: {error}"
        if not self._is_text_valid(topic):
            return ReasonCode.TOPIC_NAME_INVALID, "its will: the topic has control characters or non-characters"
        if delay and not limits.max_delayed_messages:
            return ReasonCode.TOPIC_NAME_INVALID, "its will: delayed messages are switched off"
        if not self._may_publish(topic, name, packet.client_id, identity):
            return ReasonCode.NOT_AUTHORIZED, "it may not publish its will"
        if not self._is_will_text(packet):
            return ReasonCode.PAYLOAD_FORMAT_INVALID, "its will is not UTF-8, as its format indicator says"
        if packet.will_qos > mqtt.maximum_qos:  # [5: MQTT-3.2.2-12]
            return ReasonCode.QOS_NOT_SUPPORTED, "the QoS of its will is above mqtt.maximum_qos"
        if packet.will_retain and not mqtt.retain_available:  # [5: MQTT-3.2.2-13]
            return ReasonCode.RETAIN_NOT_SUPPORTED, "its will is retained, and mqtt.retain_available is false"
        return ReasonCode.ACCEPTED, ""

    @staticmethod
    def _may_publish(topic: str, name: bytes, client_id: str, identity: Identity) -> bool:
        """Whether a client may publish to a topic; `name` is the same without a delay."""
        if topic.encode() == STATE_TOPIC % client_id.encode():
            return True
        if is_broker_only(name):
            return False
        return identity.rights is None or identity.rights.may_publish(
            tenants.prefix_of(identity.tenant).encode() + name
        )

    def _is_will_text(self, packet: Connect) -> bool:
        """Whether the will is UTF-8, if the client says so and the node checks it."""
        is_checked = self._data_plane.config.mqtt.validate_payload
        if not is_checked or not packet.will_properties.get("payload_format_indicator"):
            return True
        try:
            packet.will_payload.decode()
        except UnicodeDecodeError:
            return False
        return True

    def _rewrite_will(self, connection: Connection, packet: Connect, topic: str, username: str | None) -> None:
        """Give the will the topic name of the rewrite rules; one that is not valid stays as it is, and is refused."""
        if self._data_plane.rewriter is None:
            return
        try:
            validate_topic_name(topic, packet.protocol_level, self._data_plane.config.limits.max_topic_levels)
        except ValueError:
            return
        packet.will_topic = self._data_plane.rewriter.topic_name(connection, username, packet.client_id, topic)

    # ---- Admission ----

    def refuse(
        self, connection: Connection, code: ReasonCode, client_id: str, reason: str = "", username: str = ""
    ) -> None:
        self._turn.count(CONNECTS_REFUSED)
        more = {name: text for name, text in (("username", username), ("reason", reason)) if text}
        self._data_plane.strangers.write(
            log.info,
            "connection refused",
            client_id=client_id,
            address=connection.address,
            code=code.name.lower(),
            **more,
        )
        refusal = self._refusal(connection, code, reason)
        if connection.protocol_level < 5 or len(refusal) <= connection.maximum_packet_size:
            connection.send(refusal)
        connection.finish(f"refused: {code.name.lower()}")

    def _send_elsewhere(self, connection: Connection, packet: Connect, reason: CloseReason) -> None:
        """Refuse a client that is to use another server [5: 4.11]."""
        self._turn.count(CONNECTS_REFUSED)
        self._data_plane.strangers.write(
            log.info, "sent to another server", client_id=packet.client_id, address=connection.address, reason=reason
        )
        connection.send(
            _connack(connection, reason.code or 0, reason_string=str(reason), server_reference=reason.server_reference)
        )
        connection.finish(reason)

    def _refusal(self, connection: Connection, code: ReasonCode, reason: str) -> bytes:
        if connection.protocol_level < 5:
            return encode(Connack(reason_code=return_code(code)), 4)
        return _connack(connection, code, **({"reason_string": reason} if reason and code not in SILENT else {}))

    def refuse_others(self, connection: Connection, packet: Connect) -> None:
        reason = "the session of its client id is another user's"
        self.refuse(connection, ReasonCode.NOT_AUTHORIZED, packet.client_id, reason, packet.username or "")

    def belongs(self, session: Session, connection: Connection) -> bool:
        username = connection.identity.username
        return session.user is None or (username is not None and session.user == username.encode())

    def admit(self, connection: Connection, packet: Connect, session: Session) -> None:
        if connection.identity.username is not None:
            session.user = connection.identity.username.encode()
        connection.connect = packet if packet.will_topic is not None else None
        if packet.properties and self._hooks.has(*WITH_CLIENT):
            connection.connect_properties = _shown(packet)
        session.owner = connection
        if session.set_rights(connection.identity.rights) and session.subscriptions_held:
            self._data_plane.router.filters.forget_plans()
        connection.claimed = session
        self._data_plane.sessions.on_connected()
        self._connected_users.on_connected(connection)

    def welcome(self, connection: Connection, packet: Connect, session: Session, *, present: bool) -> None:
        if connection.closed or session.owner is not connection:
            return
        try:
            self._welcome(connection, packet, session, present)
        except Exception as error:  # the callers go on: no timer and no input would ever end this connection
            report(error, address=connection.address)
            connection.close(close_reasons.INTERNAL_ERROR)

    def _welcome(self, connection: Connection, packet: Connect, session: Session, present: bool) -> None:
        """Send CONNACK, and let the parts of the node know of the client."""
        level = packet.protocol_level
        keep_alive = float(packet.keep_alive)
        cap = self._data_plane.config.limits.max_keep_alive
        if cap and (keep_alive == 0 or keep_alive > cap):
            keep_alive = cap
        if level == 5:
            self._welcome_level_5(connection, packet, session, present, keep_alive)
            if connection.closed:
                return
        else:
            # Level 3 has no Session Present: the byte is reserved there.
            connection.send(encode(Connack(session_present=present and level > 3), 4))
            connection.accept(session, level, keep_alive, bridge=packet.bridge, **self._capabilities(connection))
        self._data_plane.sessions.on_accepted(level)
        if level == 5 and _is_link(packet):
            self._guests.attached(connection, session, packet.properties["user_property"])
        self._streams.attached(session, present=present)
        self._retained_searches.attached(session, present=present)
        connection.proceed()
        if self._data_plane.config.mqtt.auto_subscribe and connection.session is session:
            self._subscribe(connection, session)  # after SUBSCRIBE packets that came with CONNECT: they are preferred
        self._turn.count(CONNECTS_ACCEPTED)
        if not present:
            self._hooks.notify("session_started", packet.client_id, session.persistent)
        if self._hooks.has("connected"):
            self._hooks.notify("connected", client_of(connection))
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

    def _welcome_level_5(
        self, connection: Connection, packet: Connect, session: Session, present: bool, keep_alive: float
    ) -> None:
        """Send CONNACK with all limits that differ from the standard's defaults (section 5: 3.2.2.3)."""
        config, asked = self._data_plane.config, packet.properties
        properties: dict[str, Any] = {}
        if session.expiry != asked.get("session_expiry_interval", 0):
            properties["session_expiry_interval"] = session.expiry
        capabilities = self._capabilities(connection)
        if not capabilities.get("link"):
            properties["receive_maximum"] = config.limits.receive_maximum
        properties["maximum_packet_size"] = connection.max_packet_size
        if capabilities.get("maximum_qos", 2) < 2:  # [5: MQTT-3.2.2-9]
            properties["maximum_qos"] = capabilities["maximum_qos"]
        if not capabilities.get("retain_available", True):
            properties["retain_available"] = 0
        if ASSIGNED in asked:  # else the client has sent its identifier, maybe one from here [5: MQTT-3.2.2-16]
            properties[ASSIGNED] = asked[ASSIGNED]
        if config.mqtt.topic_alias_maximum:
            properties["topic_alias_maximum"] = config.mqtt.topic_alias_maximum
        if keep_alive != packet.keep_alive:
            properties["server_keep_alive"] = math.floor(keep_alive) or 1
            keep_alive = properties["server_keep_alive"]
        if connection.authentication is not None:  # [5: MQTT-4.12.0-5, 6]
            properties["authentication_method"] = connection.authentication.method
            if connection.authentication.data:
                properties["authentication_data"] = connection.authentication.data
        if _is_link(packet):
            properties["user_property"] = [(HOP, self._secret.identity)]  # by this another broker's link finds loops
            if offers(asked["user_property"]) and session.persistent:
                properties["user_property"].append((WANTED, "1"))
        largest = asked.get("maximum_packet_size", 0)
        connack = encode(Connack(session_present=present, properties=properties), 5)
        if not connection.takes(connack, close_reasons.CONNACK_TOO_LARGE):  # there is no way to say so
            return
        connection.send(connack)
        connection.accept(
            session,
            5,
            keep_alive,
            maximum_packet_size=largest,
            receive_maximum=asked.get("receive_maximum", 65_535),
            problem_information=bool(asked.get("request_problem_information", 1)),
            topic_aliases=min(asked.get("topic_alias_maximum", 0), config.mqtt.topic_alias_out),
            **capabilities,
        )

    def _capabilities(self, connection: Connection) -> _Capabilities:
        """The messages that are taken from a client; a link has another broker's, which its clients do not choose."""
        mqtt = self._data_plane.config.mqtt
        if connection.listener == LISTENER:
            return {"link": True}
        return {"maximum_qos": mqtt.maximum_qos, "retain_available": mqtt.retain_available}


def _is_link(packet: Connect) -> bool:
    """Whether the client is a link of another broker, by the properties of CONNECT."""
    return any(name == HOP for name, _ in packet.properties.get("user_property", ()))


def _give_prefix(packet: Connect, prefix: str) -> bool:
    """Give client identifier and will the prefix of the client's tenant; False: one of them is too long for it."""
    packet.client_id = prefix + packet.client_id
    if packet.will_topic is not None:
        packet.will_topic = tenants.with_prefix(prefix, packet.will_topic)
    return all(len(name.encode()) <= LONGEST for name in (packet.client_id, packet.will_topic or ""))


def _shown(packet: Connect) -> dict[str, Any]:
    """The properties that a client has sent, as hooks get them: authentication data may be a secret."""
    return {name: value for name, value in packet.properties.items() if name not in ("authentication_data", ASSIGNED)}


def _connack(connection: Connection, code: int, **properties: str) -> bytes:
    """A CONNACK that refuses a client of level 5; properties that make it too large are left out, the first first."""
    while True:
        connack = encode(Connack(reason_code=code, properties=properties), 5)
        if not properties or len(connack) <= connection.maximum_packet_size:  # [5: MQTT-3.2.2-19, 20]
            return connack
        del properties[next(iter(properties))]
