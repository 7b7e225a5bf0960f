"""The client's side of one MQTT session, without a socket or a clock: bytes in, events out, bytes out.

Owns packet identifiers, unacknowledged messages, and the QoS 1 and 2 states of both directions. Rules:
- A session outlives its connections: `connect` begins another one. After its CONNACK every unacknowledged message is
  sent again, in the order of the first sending [MQTT-4.4.0-1], with DUP if it was sent before [MQTT-3.3.1-1].
- SUBSCRIBE and UNSUBSCRIBE belong to their connection: `connection_lost` forgets them and returns their tokens.
- An incoming message is acknowledged when it is passed to the caller, or, on request, by `acknowledge`.
- Level 5: the Receive Maximum of CONNACK limits the messages in flight [5: 4.9]; others wait, in order. The caller's
  packets are within its Maximum Packet Size [5: 3.2.2.3.6]. Its Server Keep Alive replaces the keep alive of
  the options [5: MQTT-3.1.2-21], and all later connections have its Assigned Client Identifier.
- Level 5: a fault of the broker is answered by DISCONNECT with its reason code [5: 4.13]. More messages than the
  Receive Maximum of the options, or an alias above its Topic Alias Maximum, are such faults.
- Times are arguments, in seconds of one clock that the caller chooses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..codec.decode import Decoder
from ..codec.encode import encode
from ..codec.errors import InvalidPacket, MalformedPacket
from ..codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from .client_events import (
    CONTINUE_AUTHENTICATION,
    FIRST_ERROR,
    MAX_PACKET_ID,
    PACKET_TOO_LARGE,
    RECEIVE_MAXIMUM_EXCEEDED,
    TOPIC_ALIAS_INVALID,
    Accepted,
    Acknowledged,
    Disconnected,
    Event,
    PacketIdsExhausted,
    ProtocolViolation,
    Refused,
    Subscribed,
    Unsubscribed,
    reason_of,
)

MAX_PACKET_SIZE = 268_435_460  # bytes: the longest fixed header and the largest Remaining Length


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the broker publishes if the connection ends without DISCONNECT."""

    topic_name: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] = field(default_factory=dict)  # level 5


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The fields of CONNECT, the same on all connections of a session."""

    client_id: str = ""
    level: int = 4  # 3 = MQTT 3.1, 4 = MQTT 3.1.1, 5 = MQTT 5
    clean_start: bool = True
    keep_alive: int = 60  # seconds; 0 = none
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: dict[str, Any] = field(default_factory=dict)  # level 5
    auth_properties: dict[str, Any] = field(default_factory=dict)  # level 5: of AUTH, the answer to the broker's AUTH

    def packet(self) -> Connect:
        """The CONNECT packet."""
        will = self.will
        return Connect(
            client_id=self.client_id,
            clean_start=self.clean_start,
            keep_alive=self.keep_alive,
            username=self.username,
            password=self.password,
            will_topic=will.topic_name if will else None,
            will_payload=will.payload if will else b"",
            will_qos=will.qos if will else 0,
            will_retain=will.retain if will else False,
            will_properties=will.properties if will else None,
            properties=self.properties,
            protocol_level=self.level,
        )


class ClientSession:
    """One session, without a connection at first.

    Args:
        options: the fields of CONNECT.
        mark_resent: changes the payload of a message when sending it again may create a second one: at QoS 1, and at
            QoS 2 if the broker has lost the session. DUP apart, this is the only change to a packet sent again.
        acknowledge_at_once: acknowledge an incoming message when the caller gets it; else `acknowledge` does.
        ping_after: seconds without a sent packet after which PINGREQ is due; 0 = no pings.
        ping_timeout: seconds until PINGRESP is overdue.
        on_packet: called with "sending" or "received" and each packet.

    Attributes:
        client_id: of the options, or assigned by the broker.
        unacknowledged: outgoing Publish or Pubrel and its token by packet identifier, in the order of sending.
    """

    __slots__ = (
        "_accepted",
        "_acknowledge_at_once",
        "_alias_maximum",
        "_aliases",
        "_decoder",
        "_in_flight",
        "_incoming",
        "_keep_alive",
        "_last_packet_id",
        "_mark_resent",
        "_max_packet_size",
        "_maximum_qos",
        "_on_packet",
        "_ping_after",
        "_ping_sent_at",
        "_ping_timeout",
        "_receive_maximum",
        "_received",
        "_requests",
        "_sent_at",
        "_to_send",
        "_waiting",
        "client_id",
        "options",
        "unacknowledged",
    )

    def __init__(
        self,
        options: ConnectOptions,
        *,
        mark_resent: Callable[[bytes], bytes] = bytes,
        acknowledge_at_once: bool = True,
        ping_after: float = 0.0,
        ping_timeout: float = 10.0,
        on_packet: Callable[[str, Packet], None] | None = None,
    ) -> None:
        self.options = options
        self.client_id = options.client_id
        self.unacknowledged: dict[int, tuple[Publish | Pubrel, Any]] = {}
        self._mark_resent = mark_resent
        self._acknowledge_at_once = acknowledge_at_once
        self._ping_after = ping_after
        self._ping_timeout = ping_timeout
        self._on_packet = on_packet
        self._decoder: Decoder | None = None  # None: there is no connection
        self._accepted = False
        self._receive_maximum = MAX_PACKET_ID  # of the broker
        self._max_packet_size = MAX_PACKET_SIZE  # of the broker
        self._alias_maximum = 0  # of the broker
        self._maximum_qos = 2  # of the broker
        self._keep_alive = ping_after  # seconds without a sent packet until PINGREQ, on this connection
        self._aliases: dict[int, str] = {}  # topic names by the aliases of the broker, of this connection
        self._in_flight: set[int] = set()  # packet identifiers of incoming messages, of this connection, level 5
        self._requests: dict[int, Any] = {}  # tokens of SUBSCRIBE and UNSUBSCRIBE, by packet identifier
        # Identifiers in `unacknowledged` of messages that this connection, or without one the last, has not carried.
        self._waiting: OrderedDict[int, None] = OrderedDict()
        self._incoming: set[int] = set()  # QoS 2 identifiers passed to the caller, not acknowledged by PUBREC
        self._received: set[int] = set()  # QoS 2 identifiers acknowledged by PUBREC, not released
        self._last_packet_id = 0
        self._to_send: list[bytes] = []
        self._sent_at = 0.0
        self._ping_sent_at: float | None = None  # None: no PINGREQ is unanswered

    @property
    def accepted(self) -> bool:
        """Whether there is a connection that CONNACK has accepted."""
        return self._accepted

    # ---- sending ----

    def connect(self) -> None:
        """Begin a connection: send CONNECT."""
        self.connection_lost()
        self._aliases.clear()
        self._in_flight.clear()
        self._decoder = Decoder(self.options.level)
        packet = self.options.packet()
        packet.client_id = self.client_id
        self._send(packet)

    def connection_lost(self) -> list[Any]:
        """End the connection. Returns the tokens of SUBSCRIBE and UNSUBSCRIBE without a reply."""
        tokens = list(self._requests.values())
        self._requests.clear()
        self._end_connection()
        return tokens

    def subscribe(
        self, topic_filters: Sequence[tuple[str, int]], token: Any = None, properties: dict[str, Any] | None = None
    ) -> None:
        """Send SUBSCRIBE for (topic filter, QoS) pairs; Subscribed follows. Raises InvalidPacket."""
        self._request(Subscribe(self._next_packet_id(), list(topic_filters), properties), token)

    def unsubscribe(
        self, topic_filters: Sequence[str], token: Any = None, properties: dict[str, Any] | None = None
    ) -> None:
        """Send UNSUBSCRIBE; Unsubscribed follows. Raises InvalidPacket."""
        self._request(Unsubscribe(self._next_packet_id(), list(topic_filters), properties), token)

    def publish(
        self,
        topic_name: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        token: Any = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Send PUBLISH; at QoS 1 and 2 Acknowledged follows, on this connection or a later one.

        Without an accepted connection a message at QoS 0 is dropped, another one waits for CONNACK.

        Raises:
            InvalidPacket: the topic name or a property can't be encoded, or the broker accepts no packet of this size,
                of this QoS or with this alias.
            PacketIdsExhausted: too many messages are unacknowledged.
        """
        if qos > self._maximum_qos:
            raise InvalidPacket(f"PUBLISH: the broker accepts QoS {self._maximum_qos} at most")  # [5: MQTT-3.2.2-11]
        if properties and properties.get("topic_alias", 0) > self._alias_maximum:  # [5: MQTT-3.3.2-9]
            raise InvalidPacket(f"PUBLISH: the broker accepts no topic alias above {self._alias_maximum}")
        packet_id = self._next_packet_id() if qos else 0
        packet = Publish(topic_name, payload, qos, retain, False, packet_id, properties)
        data = self._encode(packet)
        may_send = self._accepted and (not qos or self._has_room())
        if qos:
            self.unacknowledged[packet_id] = packet, token
            if not may_send:
                self._waiting[packet_id] = None
        if may_send:
            self._write(packet, data)

    def acknowledge(self, packet: Publish) -> None:
        """Acknowledge a message that the caller got unacknowledged; before CONNACK only the state changes."""
        if packet.qos == 2:
            self._incoming.discard(packet.packet_id)
            self._received.add(packet.packet_id)
        if packet.qos == 1:
            self._in_flight.discard(packet.packet_id)
        if packet.qos and self._accepted:
            self._send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))

    def disconnect(self, reason_code: int = 0, properties: dict[str, Any] | None = None) -> None:
        """Send DISCONNECT; code and properties are for level 5. Raises InvalidPacket."""
        self._send(Disconnect(reason_code, properties))

    def forget_outgoing(self) -> None:
        """Drop the unacknowledged messages: the next connection sends none of them again."""
        self.unacknowledged.clear()
        self._waiting.clear()

    def take_output(self, now: float) -> bytes:
        """The bytes to send now."""
        if not self._to_send:
            return b""
        data = b"".join(self._to_send)
        self._to_send.clear()
        self._sent_at = now
        return data

    # ---- time ----

    @property
    def next_due(self) -> float:
        """When `on_time` must be called next; infinite if no timer runs."""
        if not self._accepted or not self._keep_alive:
            return inf
        if self._ping_sent_at is not None:
            return self._ping_sent_at + self._ping_timeout
        return self._sent_at + self._keep_alive

    def on_time(self, now: float) -> bool:
        """Send PINGREQ if it is due. Returns False if PINGRESP is overdue."""
        if now < self.next_due:
            return True
        if self._ping_sent_at is not None:
            return False
        self.ping(now)
        return True

    def ping(self, now: float) -> None:
        """Send PINGREQ."""
        self._ping_sent_at = now
        self._send(Pingreq())

    # ---- receiving ----

    def feed(self, data: bytes) -> list[Event]:
        """The events of the bytes received.

        Raises:
            ProtocolViolation: the broker has sent data that the standard forbids.
        """
        events: list[Event] = []
        if self._decoder is None:
            raise ProtocolViolation("the broker sent data without a CONNECT", events)
        fault: MalformedPacket | None = None
        try:
            packets: Sequence[Packet] = self._decoder.feed(data)
        except MalformedPacket as error:
            packets, fault = error.packets, error
        try:
            for packet in packets:
                self._handle(packet, events)
                if self._decoder is None:
                    return events
            if fault is not None:
                raise ProtocolViolation(f"the broker broke the protocol: {fault.reason}", events, fault.code)
        except ProtocolViolation as violation:
            if self.options.level == 5 and self._accepted:
                self.disconnect(violation.reason_code)
            raise
        return events

    def _handle(self, packet: Packet, events: list[Event]) -> None:
        if self._on_packet is not None:
            self._on_packet("received", packet)
        if isinstance(packet, Auth) and not self._accepted and packet.reason_code == CONTINUE_AUTHENTICATION:
            self._answer_auth(events)
            return
        if self._accepted == isinstance(packet, Connack):
            when = "after" if self._accepted else "before"
            raise ProtocolViolation(f"the broker sent {type(packet).__name__.upper()} {when} CONNACK", events)
        match packet:
            case Publish():
                self._handle_publish(packet, events)
            case Puback() | Pubcomp():
                self._end_publication(packet, events)
            case Pubrec():
                self._handle_pubrec(packet, events)
            case Pubrel():
                self._received.discard(packet.packet_id)
                self._in_flight.discard(packet.packet_id)
                self._send(Pubcomp(packet.packet_id))
            case Pingresp():
                self._ping_sent_at = None
            case Suback():
                token = self._requests.pop(packet.packet_id, None)
                events.append(Subscribed(packet.reason_codes, token, packet.properties))
            case Unsuback():
                token = self._requests.pop(packet.packet_id, None)
                events.append(Unsubscribed(packet.reason_codes, token, packet.properties))
            case Connack():
                self._handle_connack(packet, events)
            case Disconnect() if self.options.level == 5:
                events.append(Disconnected(packet.reason_code, reason_of(packet, 5), packet.properties))
                self._end_connection()
            case _:
                raise ProtocolViolation(f"the broker sent {type(packet).__name__.upper()}", events)

    def _answer_auth(self, events: list[Event]) -> None:
        """Answer the broker, which asks for more authentication data [5: MQTT-4.12.0-3]."""
        options = self.options
        if not options.auth_properties:
            raise ProtocolViolation("the broker asks for more authentication data, and there is none", events)
        method = options.properties.get("authentication_method", "")
        self._send(Auth(CONTINUE_AUTHENTICATION, {"authentication_method": method, **options.auth_properties}))

    def _handle_connack(self, packet: Connack, events: list[Event]) -> None:
        options = self.options
        if packet.reason_code:
            events.append(Refused(packet.reason_code, reason_of(packet, options.level), packet.properties))
            self._end_connection()
            return
        events.append(Accepted(packet.session_present, packet.properties))
        self._accepted = True
        self._take_limits(packet.properties)
        # MQTT 3.1 has no session present flag: without clean start the session is assumed to continue.
        continued = not options.clean_start and (options.level < 4 or packet.session_present)
        if not continued:
            self._incoming.clear()
            self._received.clear()
        # Each PUBREL goes at once; PUBLISH waits for room, in order.
        unsent, self._waiting = self._waiting, OrderedDict()
        for packet_id, (unacknowledged, token) in self.unacknowledged.items():
            if isinstance(unacknowledged, Pubrel):
                self._send(unacknowledged)
                continue
            if unacknowledged.dup or packet_id not in unsent:
                self.unacknowledged[packet_id] = self._redelivery(unacknowledged, continued), token
            self._waiting[packet_id] = None
        self._send_waiting(events)

    def _take_limits(self, properties: Mapping[str, Any]) -> None:
        """The properties of CONNACK, which are empty below level 5."""
        self._receive_maximum = properties.get("receive_maximum", MAX_PACKET_ID)
        self._max_packet_size = properties.get("maximum_packet_size", MAX_PACKET_SIZE)
        self._alias_maximum = properties.get("topic_alias_maximum", 0)
        self._maximum_qos = properties.get("maximum_qos", 2)
        self.client_id = properties.get("assigned_client_identifier", self.client_id)
        keep_alive = properties.get("server_keep_alive")
        self._keep_alive = self._ping_after if keep_alive is None else keep_alive / 2

    def _redelivery(self, packet: Publish, continued: bool) -> Publish:
        twice = packet.qos == 1 or not continued
        payload = self._mark_resent(packet.payload) if twice else packet.payload
        return Publish(packet.topic_name, payload, packet.qos, packet.retain, True, packet.packet_id, packet.properties)

    def _handle_publish(self, packet: Publish, events: list[Event]) -> None:
        if self.options.level == 5:
            self._check_publish(packet, events)
        if packet.qos == 2:
            if packet.packet_id in self._received:  # a redelivery of an acknowledged message [MQTT-4.3.3-2]
                self._send(Pubrec(packet.packet_id))
                return
            if packet.packet_id in self._incoming:
                return
            self._incoming.add(packet.packet_id)
        events.append(packet)
        if self._acknowledge_at_once:
            self.acknowledge(packet)

    def _check_publish(self, packet: Publish, events: list[Event]) -> None:
        """Keep to the limits of this CONNECT, and put the topic name in the place of an alias."""
        limits = self.options.properties
        if packet.qos:
            in_flight = self._in_flight
            in_flight.add(packet.packet_id)
            if len(in_flight) > limits.get("receive_maximum", MAX_PACKET_ID):  # [5: MQTT-3.3.4-9]
                reason = "the broker sent more messages than our Receive Maximum"
                raise ProtocolViolation(reason, events, RECEIVE_MAXIMUM_EXCEEDED)
        alias = packet.properties.get("topic_alias")
        if alias is None:
            return
        if alias > limits.get("topic_alias_maximum", 0):
            raise ProtocolViolation(f"the broker sent topic alias {alias}", events, TOPIC_ALIAS_INVALID)
        if packet.topic_name:
            self._aliases[alias] = packet.topic_name
        elif alias in self._aliases:
            packet.topic_name = self._aliases[alias]
        else:
            raise ProtocolViolation(f"the broker sent topic alias {alias} before its topic name", events)

    def _handle_pubrec(self, packet: Pubrec, events: list[Event]) -> None:
        if packet.reason_code >= FIRST_ERROR:  # level 5: the broker refuses the message
            self._end_publication(packet, events)
            return
        release = Pubrel(packet.packet_id)
        entry = self.unacknowledged.get(packet.packet_id)
        if entry is not None:
            self.unacknowledged[packet.packet_id] = release, entry[1]
        self._send(release)

    def _end_publication(self, packet: Puback | Pubrec | Pubcomp, events: list[Event]) -> None:
        entry = self.unacknowledged.pop(packet.packet_id, None)
        if entry is None:
            return
        events.append(Acknowledged(entry[1], packet.reason_code, packet.properties))
        if self._waiting:
            self._waiting.pop(packet.packet_id, None)
            self._send_waiting(events)

    # ---- both ----

    def _has_room(self) -> bool:
        """Whether another message may be in flight."""
        return len(self.unacknowledged) - len(self._waiting) < self._receive_maximum

    def _send_waiting(self, events: list[Event]) -> None:
        while self._waiting and self._has_room():
            packet_id, _ = self._waiting.popitem(last=False)
            packet, token = self.unacknowledged[packet_id]
            try:
                data = self._encode(packet)
            except InvalidPacket:  # it was within the limit of an earlier connection
                del self.unacknowledged[packet_id]
                events.append(Acknowledged(token, PACKET_TOO_LARGE))
            else:
                self._write(packet, data)

    def _end_connection(self) -> None:
        self._to_send.clear()
        self._decoder = None
        self._accepted = False
        self._max_packet_size = MAX_PACKET_SIZE
        self._maximum_qos = 2
        self._ping_sent_at = None

    def _next_packet_id(self) -> int:
        for _ in range(MAX_PACKET_ID):
            self._last_packet_id = self._last_packet_id % MAX_PACKET_ID + 1
            if self._last_packet_id not in self.unacknowledged and self._last_packet_id not in self._requests:
                return self._last_packet_id
        raise PacketIdsExhausted

    def _request(self, packet: Subscribe | Unsubscribe, token: Any) -> None:
        assert self._decoder is not None, "connect comes first"
        data = self._encode(packet)
        self._requests[packet.packet_id] = token
        self._write(packet, data)

    def _encode(self, packet: Packet) -> bytes:
        data = encode(packet, self.options.level)
        if len(data) > self._max_packet_size:
            name = type(packet).__name__.upper()
            raise InvalidPacket(f"{name}: {len(data)} bytes; the broker accepts {self._max_packet_size}")
        return data

    def _send(self, packet: Packet) -> None:
        if self._decoder is not None:
            self._write(packet, encode(packet, self.options.level))

    def _write(self, packet: Packet, data: bytes) -> None:
        if self._on_packet is not None:
            self._on_packet("sending", packet)
        self._to_send.append(data)
