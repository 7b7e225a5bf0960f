"""CONNECT: checks and authenticates the client, then asks the owner of sessions for its session."""

import secrets
from collections.abc import Awaitable
from functools import partial
from inspect import isawaitable
from typing import Any

from ..._speedups.codec.packets import Connack, Connect
from ..._speedups.codec.topics import has_control_characters
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.routing.delayed import split_delayed
from ..._speedups.session.counters import AUTH_FAILURES
from ..._speedups.session.session import Session
from ..auth.authenticator import Identity, ReasonCode, Verdict
from ..auth.connected_users import ConnectedUsers
from ..config.link import CLIENT_ID_PREFIX, LISTENER
from ..coordination.admission import Admission
from ..coordination.coordinator import SessionOwner
from ..core import tenants
from ..core.data_plane import DataPlane, report
from ..core.redirect import Redirect
from ..hooks.api import Client
from ..hooks.chain import HookChain, Question, Refused
from .auth import WRONG, AuthHandler
from .connack import ASSIGNED
from .connect_accepted import ConnectAccepted
from .connect_limits import ConnectLimits
from .refusal import Refusal
from .will_check import WillCheck

CLIENT_ID_CHARACTERS = 23  # at level 3
LONGEST = 65_535  # bytes of a text in MQTT

# Hooks called with a `Client` later.
WITH_CLIENT = (
    "authorize",
    "publish",
    "subscribe",
    "connected",
    "disconnected",
    "subscribed",
    "unsubscribed",
    "throttled",
)
MAX_NUMBER = 1 << 32  # of CONNECT packets: then they are counted from 0
LINK = Identity(method="link", listener=LISTENER)  # of the links of this node


class ConnectHandler(Admission):
    """Decides over CONNECT packets.

    Args:
        data_plane: of the node.
        owner: assigns sessions.
        auth: authenticates clients.
        limits: of connecting.
        connected_users: limits connections per user.
        hooks: called for each client that the authenticator accepts.
        wills: judges the wills.
        redirect: sends clients to other servers.
        welcome: sends CONNACK.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        owner: SessionOwner,
        auth: AuthHandler,
        limits: ConnectLimits,
        connected_users: ConnectedUsers,
        hooks: HookChain,
        wills: WillCheck,
        redirect: Redirect,
        welcome: ConnectAccepted,
    ) -> None:
        self._data_plane = data_plane
        self._owner = owner
        self._auth = auth
        self._limits = limits
        self._connected_users = connected_users
        self._hooks = hooks
        self._redirect = redirect
        self._welcome = welcome
        self._connacks = welcome.connacks
        self._wills = wills
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
            self._owner.claim(self, connection, packet)
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
        refusal = self._limits.ban(connection, known, packet.username)
        if refusal is None and known is not None:
            refusal = self._limits.flapping(connection, known)
        if refusal is not None:
            self.refuse(connection, refusal.code, packet.client_id, refusal.reason)
            return
        elsewhere = self._redirect.reason() if packet.protocol_level == 5 else None
        if elsewhere is not None:
            self._connacks.send_elsewhere(connection, packet, elsewhere)
            return
        if self._redirect.closed:
            self.refuse(connection, ReasonCode.SERVER_UNAVAILABLE, packet.client_id, "the node is drained")
            return
        self._auth.authenticate(connection, packet, partial(self._decide, connection, packet))

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
        identity, accepted = verdict.identity, verdict.code == ReasonCode.ACCEPTED
        client_id = tenants.prefix_of(identity.tenant) + packet.client_id
        refusal = self._limits.ban(connection, client_id, identity.username, identity.tenant)  # it may be new
        if refusal is None and accepted and self._data_plane.config.tenants:
            refusal = self._limits.flapping(connection, client_id)
        if refusal is not None:
            self.refuse(connection, refusal.code, client_id, refusal.reason)
            return
        self._data_plane.turn.count(AUTH_FAILURES, verdict.code in WRONG)
        refusal = self._judge(connection, packet, identity) if accepted else Refusal(verdict.code, verdict.reason)
        if refusal is not None:
            self.refuse(connection, refusal.code, packet.client_id, refusal.reason, packet.username or "")
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

    def _judge(self, connection: Connection, packet: Connect, identity: Identity) -> Refusal | None:
        """Give the names in CONNECT the form within the broker; the refusal of an authenticated client, or None."""
        self._wills.rewrite(connection, packet, identity.username)
        refusal = self._wills.refusal(connection, packet, identity)
        if refusal is not None:
            return refusal
        prefix = tenants.prefix_of(identity.tenant)
        if prefix and not _give_prefix(packet, prefix):
            reason = "its identifier or the topic of its will is too long"
            return Refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, reason)
        full = self._connected_users.lacks_room(identity, packet.client_id.encode())
        return Refusal(ReasonCode.QUOTA_EXCEEDED, full) if full else None

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
        full = self._connected_users.lacks_room(identity, packet.client_id.encode())  # others have connected in between
        banned = self._limits.ban(connection, packet.client_id, identity.username, identity.tenant)
        if full:
            self.refuse(connection, ReasonCode.QUOTA_EXCEEDED, packet.client_id, full, packet.username or "")
        elif banned is not None:
            self.refuse(connection, banned.code, packet.client_id)
        else:
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
        self._owner.claim(self, connection, packet)

    # ---- Admission ----

    def refuse(
        self, connection: Connection, code: ReasonCode, client_id: str, reason: str = "", username: str = ""
    ) -> None:
        self._connacks.refuse(connection, code, client_id, reason, username)

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
            self._welcome.send(connection, packet, session, present=present)
        except Exception as error:  # the callers go on: no timer and no input would ever end this connection
            report(error, address=connection.address)
            connection.close(close_reasons.INTERNAL_ERROR)


def _give_prefix(packet: Connect, prefix: str) -> bool:
    """Give client identifier and will the prefix of the client's tenant; False: one of them is too long for it."""
    packet.client_id = prefix + packet.client_id
    if packet.will_topic is not None:
        packet.will_topic = tenants.with_prefix(prefix, packet.will_topic)
    return all(len(name.encode()) <= LONGEST for name in (packet.client_id, packet.will_topic or ""))


def _shown(packet: Connect) -> dict[str, Any]:
    """The properties that a client has sent, as hooks get them: authentication data may be a secret."""
    return {name: value for name, value in packet.properties.items() if name not in ("authentication_data", ASSIGNED)}
