"""CONNACK: the refusals, and the acceptance with all limits that differ from the standard's defaults."""

import math
from typing import Any

from ..._speedups.codec.encode import encode
from ..._speedups.codec.packets import Connack, Connect
from ..._speedups.codec.reason_codes import ReasonCode, return_code
from ..._speedups.net.connection import Connection
from ..._speedups.protocol import close_reasons
from ..._speedups.protocol.close_reasons import CloseReason
from ..._speedups.protocol.connection_terms import ConnectionTerms
from ..._speedups.session.counters import CONNECTS_REFUSED
from ..._speedups.session.session import Session
from .. import logs
from ..config.link import HOP, LISTENER, WANTED
from ..core.data_plane import DataPlane
from ..core.secret import Secret
from ..core.transactions import PROPERTY
from ..events.client_events import ClientEvents
from ..interest.incoming_links import is_link, offers
from .auth import WRONG

TOPIC_ALIASES = 16  # that a node sets on messages to an MQTT 5.0 client, at most
ASSIGNED = "assigned_client_identifier"
SILENT = (*WRONG, ReasonCode.BANNED)  # refusals whose reason is for the log only

log = logs.get("flockmq.connect")


class Connacks:
    """Sends CONNACK.

    Args:
        data_plane: of the node.
        secret: of the node.
        events: of the node.
    """

    def __init__(self, data_plane: DataPlane, secret: Secret, events: ClientEvents) -> None:
        self._data_plane = data_plane
        self._secret = secret
        self._events = events

    # ---- refused ----

    def refuse(self, connection: Connection, code: ReasonCode, client_id: str, reason: str, username: str) -> None:
        """Refuse a client, and log the reason; the client gets the reason unless it is for the log only."""
        self._data_plane.turn.count(CONNECTS_REFUSED)
        more = {name: text for name, text in (("username", username), ("reason", reason)) if text}
        self._data_plane.log_limiter.write(
            log.info,
            "connection refused",
            client_id=client_id,
            address=connection.address,
            code=code.name.lower(),
            **more,
        )
        self._events.refused(connection, client_id, username, code, reason)
        if connection.protocol_level < 5:
            connection.send(encode(Connack(reason_code=return_code(code)), 4))
        else:
            shown = {"reason_string": reason} if reason and code not in SILENT else {}
            refusal = _within_size(connection, code, **shown)
            if len(refusal) <= connection.maximum_packet_size:
                connection.send(refusal)
        connection.finish(f"refused: {code.name.lower()}")

    def send_elsewhere(self, connection: Connection, packet: Connect, reason: CloseReason) -> None:
        """Refuse a client that is to use another server [5: 4.11]."""
        self._data_plane.turn.count(CONNECTS_REFUSED)
        self._data_plane.log_limiter.write(
            log.info, "sent to another server", client_id=packet.client_id, address=connection.address, reason=reason
        )
        more = {"reason_string": str(reason), "server_reference": reason.server_reference}
        connection.send(_within_size(connection, reason.code or 0, **more))
        connection.finish(reason)

    # ---- accepted ----

    def accept(self, connection: Connection, packet: Connect, session: Session, *, present: bool) -> bool:
        """Send CONNACK, and let the connection handle packets. False: CONNACK is too large, and the connection ends."""
        level = packet.protocol_level
        keep_alive = self._keep_alive(packet)
        if level < 5:
            # Level 3 has no Session Present: the byte is reserved there.
            connack = encode(Connack(session_present=present and level > 3), 4)
        else:
            properties = self._properties(connection, packet, session, keep_alive)
            keep_alive = properties.get("server_keep_alive", keep_alive)
            connack = encode(Connack(session_present=present, properties=properties), 5)
            if not connection.takes(connack, close_reasons.CONNACK_TOO_LARGE):  # there is no way to say so
                return False
        connection.send(connack)
        connection.accept(session, level, keep_alive, self._terms(connection, packet))
        return True

    def _keep_alive(self, packet: Connect) -> float:
        """The keep alive of the client within the limit of the node, in seconds; 0: none."""
        cap = self._data_plane.config.limits.max_keep_alive
        return cap if cap and (packet.keep_alive == 0 or packet.keep_alive > cap) else float(packet.keep_alive)

    def _properties(
        self, connection: Connection, packet: Connect, session: Session, keep_alive: float
    ) -> dict[str, Any]:
        """The properties of an acceptance (section 5: 3.2.2.3)."""
        config, asked = self._data_plane.config, packet.properties
        properties: dict[str, Any] = {}
        if session.expiry != asked.get("session_expiry_interval", 0):
            properties["session_expiry_interval"] = session.expiry
        if connection.listener != LISTENER:
            properties["receive_maximum"] = config.limits.receive_maximum
        properties["maximum_packet_size"] = connection.max_packet_size
        if connection.listener != LISTENER:  # a link has the other broker's messages
            if config.mqtt.maximum_qos < 2:  # [5: MQTT-3.2.2-9]
                properties["maximum_qos"] = config.mqtt.maximum_qos
            if not config.mqtt.retain_available:
                properties["retain_available"] = 0
        if ASSIGNED in asked:  # else the client has sent its identifier, maybe one from here [5: MQTT-3.2.2-16]
            properties[ASSIGNED] = asked[ASSIGNED]
        if config.mqtt.topic_alias_maximum:
            properties["topic_alias_maximum"] = config.mqtt.topic_alias_maximum
        if keep_alive != packet.keep_alive:
            properties["server_keep_alive"] = math.floor(keep_alive) or 1
        if connection.authentication is not None:  # [5: MQTT-4.12.0-5, 6]
            properties["authentication_method"] = connection.authentication.method
            if connection.authentication.data:
                properties["authentication_data"] = connection.authentication.data
        if is_link(packet):
            properties["user_property"] = [(HOP, self._secret.identity)]  # by this another broker's link finds loops
            if offers(asked["user_property"]) and session.persistent:
                properties["user_property"].append((WANTED, "1"))
        elif config.limits.max_delayed_messages and any(name == PROPERTY for name, _ in asked.get("user_property", ())):
            properties["user_property"] = [(PROPERTY, "1")]
        return properties

    def _terms(self, connection: Connection, packet: Connect) -> ConnectionTerms:
        asked, mqtt = packet.properties, self._data_plane.config.mqtt
        if packet.protocol_level == 5:
            terms = ConnectionTerms(
                maximum_packet_size=asked.get("maximum_packet_size", 0),
                receive_maximum=asked.get("receive_maximum", 65_535),
                problem_information=bool(asked.get("request_problem_information", 1)),
                topic_aliases=min(asked.get("topic_alias_maximum", 0), TOPIC_ALIASES),
            )
        else:
            terms = ConnectionTerms(bridge=packet.bridge)
        if connection.listener == LISTENER:
            terms.link = True  # its messages are another broker's clients', which do not choose by these limits
        else:
            terms.maximum_qos, terms.retain_available = mqtt.maximum_qos, mqtt.retain_available
        return terms


def _within_size(connection: Connection, code: int, **properties: str) -> bytes:
    """A CONNACK that refuses a client of level 5; properties that make it too large are left out, the first first."""
    while True:
        connack = encode(Connack(reason_code=code, properties=properties), 5)
        if not properties or len(connack) <= connection.maximum_packet_size:  # [5: MQTT-3.2.2-19, 20]
            return connack
        del properties[next(iter(properties))]
