"""The protocol half of a simulated client: the client's side of one MQTT 3.1.1 session, without a socket or a clock.

Owns packet identifiers, what is not acknowledged yet, and the QoS 2 states of both directions. `feed` takes what was
received and returns what happened, `take` hands out what is to be sent. Rules:
- A session outlives its connections: `connect` begins another one. After its CONNACK all that was not acknowledged is
  sent again, with DUP. Where that may make two of one message (QoS 1; QoS 2 if the broker has forgotten the session)
  the payload passes through `mark_resent`, the one change to a packet that is sent again.
- A message counts as received when it is handed out; PUBACK or PUBREC is among what `take` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from _speedups.codec.decode import Decoder
from _speedups.codec.encode import encode
from _speedups.codec.errors import MalformedPacket
from _speedups.codec.packets import (
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
)

REFUSALS = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes if the connection dies."""

    topic_name: str
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What stays the same over all connections of a client."""

    client_id: str
    clean_session: bool = True
    keep_alive: int = 60  # seconds
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None


class Accepted(NamedTuple):
    """CONNACK; messages may pass."""

    session_present: bool


class Refused(NamedTuple):
    """CONNACK that refuses, with its words."""

    reason: str


class Subscribed(NamedTuple):
    """SUBACK with the granted QoS of each filter, or 0x80."""

    codes: list[int]


class Acknowledged(NamedTuple):
    """The end of a publication at QoS 1 or 2."""

    token: Any  # what was given to `publish`


Event: TypeAlias = Accepted | Refused | Subscribed | Acknowledged | Publish


class BrokenProtocol(Exception):
    """The broker sent what it may not send."""


class Session:
    """One session.

    Args:
        options: who connects, and how.
        mark_resent: changes the payload of a message of which sending it again may make two.
    """

    __slots__ = (
        "_accepted",
        "_decoder",
        "_last_packet_id",
        "_mark_resent",
        "_received",
        "_to_send",
        "options",
        "pings",
        "unacknowledged",
    )

    def __init__(self, options: Options, mark_resent: Callable[[bytes], bytes] = bytes) -> None:
        self.options = options
        self.unacknowledged: dict[int, tuple[Publish | Pubrel, Any]] = {}  # by packet identifier, in the order sent
        self.pings = 0  # PINGREQs without an answer
        self._mark_resent = mark_resent
        self._decoder: Decoder | None = None
        self._accepted = False
        self._received: set[int] = set()  # QoS 2 packet identifiers that are not released
        self._last_packet_id = 0
        self._to_send: list[bytes] = []

    def connect(self) -> None:
        """Begin a connection."""
        options, will = self.options, self.options.will
        self._decoder = Decoder(4)
        self._accepted = False
        self.pings = 0
        self._to_send.clear()
        self._send(
            Connect(
                client_id=options.client_id,
                clean_start=options.clean_session,
                keep_alive=options.keep_alive,
                username=options.username,
                password=options.password,
                will_topic=will.topic_name if will else None,
                will_payload=will.payload if will else b"",
                will_qos=will.qos if will else 0,
                will_retain=will.retain if will else False,
            )
        )

    def subscribe(self, topic_filters: list[tuple[str, int]]) -> None:
        """Send SUBSCRIBE."""
        self._send(Subscribe(self._next_packet_id(), topic_filters))

    def publish(self, topic_name: str, payload: bytes, qos: int, retain: bool = False, token: Any = None) -> None:
        """Send PUBLISH; at QoS 1 and 2 an Acknowledged with the token follows."""
        packet = Publish(topic_name, payload, qos, retain, False, self._next_packet_id() if qos else 0)
        if qos:
            self.unacknowledged[packet.packet_id] = packet, token
        self._send(packet)

    def ping(self) -> None:
        """Send PINGREQ."""
        self.pings += 1
        self._send(Pingreq())

    def disconnect(self) -> None:
        """Send DISCONNECT."""
        self._send(Disconnect())

    def take(self) -> bytes:
        """What is to be sent now."""
        data = b"".join(self._to_send)
        self._to_send.clear()
        return data

    def feed(self, data: bytes) -> list[Event]:
        """What happened by the bytes received. Raises BrokenProtocol."""
        assert self._decoder is not None, "connect comes first"
        events: list[Event] = []
        try:
            for packet in self._decoder.feed(data):
                self._handle(packet, events)
        except MalformedPacket as error:
            raise BrokenProtocol(f"malformed packet: {error.reason}") from None
        return events

    def _handle(self, packet: Packet, events: list[Event]) -> None:
        if self._accepted == isinstance(packet, Connack):
            raise BrokenProtocol(f"{type(packet).__name__.upper()} {'after' if self._accepted else 'before'} CONNACK")
        match packet:
            case Publish():
                self._handle_publish(packet, events)
            case Puback() | Pubcomp():
                entry = self.unacknowledged.pop(packet.packet_id, None)
                if entry is not None:
                    events.append(Acknowledged(entry[1]))
            case Pubrec():
                self._handle_pubrec(packet)
            case Pubrel():
                self._received.discard(packet.packet_id)
                self._send(Pubcomp(packet.packet_id))
            case Pingresp():
                self.pings = 0
            case Suback():
                events.append(Subscribed(packet.reason_codes))
            case Connack():
                events.append(self._handle_connack(packet))
            case _:
                raise BrokenProtocol(f"{type(packet).__name__.upper()} from the broker")

    def _handle_connack(self, packet: Connack) -> Event:
        if packet.reason_code:
            return Refused(REFUSALS[packet.reason_code])
        self._accepted = True
        if not packet.session_present:
            self._received.clear()
        for packet_id, (waiting, token) in self.unacknowledged.items():
            if isinstance(waiting, Publish):
                waiting = self._redelivery(waiting, packet.session_present)
                self.unacknowledged[packet_id] = waiting, token
            self._send(waiting)
        return Accepted(packet.session_present)

    def _redelivery(self, packet: Publish, session_present: bool) -> Publish:
        twice = packet.qos == 1 or not session_present
        payload = self._mark_resent(packet.payload) if twice else packet.payload
        return Publish(packet.topic_name, payload, packet.qos, packet.retain, True, packet.packet_id)

    def _handle_publish(self, packet: Publish, events: list[Event]) -> None:
        if packet.qos == 0:
            events.append(packet)
        elif packet.qos == 1:
            events.append(packet)
            self._send(Puback(packet.packet_id))
        else:
            if packet.packet_id not in self._received:  # else a redelivery of what was handed out [MQTT-4.3.3-2]
                self._received.add(packet.packet_id)
                events.append(packet)
            self._send(Pubrec(packet.packet_id))

    def _handle_pubrec(self, packet: Pubrec) -> None:
        release = Pubrel(packet.packet_id)
        entry = self.unacknowledged.get(packet.packet_id)
        if entry is not None:
            self.unacknowledged[packet.packet_id] = release, entry[1]
        self._send(release)

    def _next_packet_id(self) -> int:
        assert len(self.unacknowledged) < 65535, "the window is smaller"
        while True:
            self._last_packet_id = self._last_packet_id % 65535 + 1
            if self._last_packet_id not in self.unacknowledged:
                return self._last_packet_id

    def _send(self, packet: Packet) -> None:
        self._to_send.append(encode(packet, 4))
