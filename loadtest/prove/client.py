"""Clients that do what the standard asks of a client, over any number of connections, and write all of it to a history.

A client keeps its half of the session: it sends unacknowledged messages again, in order and with DUP, and takes a
message of QoS 2 once. `silent` has answers that it does not send, so that it stops at any step of a flow. Nothing runs
by itself: a `Fleet` reads and answers.
"""

import select
import socket
import time
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from ..._speedups.codec.decode import Decoder
from ..._speedups.codec.encode import encode
from ..._speedups.codec.errors import MalformedPacket
from ..._speedups.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from .history import (
    Acknowledged,
    Connected,
    Connecting,
    Delivered,
    Ended,
    History,
    Leaving,
    Published,
    Subscribed,
    Taken,
    Unexpected,
)

NEVER = 0xFFFFFFFF  # a Session Expiry Interval
# Seconds by which a node may have the clock of the cluster too late: as long as the reply of Redis took that it has it
# from. A node that could not reach Redis may have waited for that reply during all of the outage.
LATE = 60
FAILED = 0x80  # reason codes from here on are failures
PADDING = 1500  # characters that make a message large


@dataclass
class Outgoing:
    """A message that the broker has not taken over completely."""

    packet: Publish
    received: bool = False  # PUBREC has come


def properties_of(payload: bytes) -> dict[str, Any]:
    """The properties that a client of level 5 gives a message: they name it, and it expires long after the test.

    Every eighth message is a large one: brokers may treat them in another way.
    """
    checksum = crc32(payload)
    properties = [("checksum", f"{checksum:08x}")]
    if checksum % 8 == 0:
        properties.insert(0, ("padding", "." * PADDING))
    return {"message_expiry_interval": 1_000_000, "user_property": properties}


class RecordedClient:
    """A client; not connected yet.

    Args:
        history: of the run.
        client_id: its id.
        clean: CONNECT's clean session flag.
        level: protocol level.
        expiry: Session Expiry Interval in seconds, at level 5 of a client that is not clean.
        patience: seconds in which the broker must reply to CONNECT, or the connection counts as lost.
        subscribes_again: whether it subscribes again to its topic filters if the broker has lost the session.
    """

    def __init__(
        self,
        history: History,
        client_id: str,
        *,
        clean: bool = False,
        level: int = 4,
        expiry: int = NEVER,
        patience: float = 60.0,
        subscribes_again: bool = False,
    ) -> None:
        self.history = history
        self.client_id = client_id
        self.clean = clean
        self.level = level
        self.expiry = expiry
        self.patience = patience
        self.subscribes_again = subscribes_again
        self.asked: list[tuple[str, str]] = []  # user properties of CONNECT, at level 5
        self.granted: list[tuple[str, int]] = []  # subscriptions that the broker has acknowledged
        self.silent: set[type] = set()  # packets that are not sent as answers
        self.outgoing: dict[int, Outgoing] = {}
        self.subscriptions: dict[int, list[tuple[str, int]]] = {}  # asked for, by packet identifier
        self.unreleased: set[int] = set()  # QoS 2 packet identifiers
        self.taken: set[bytes] = set()
        self.seen: list[Packet] = []  # on this connection
        self.socket: socket.socket | None = None
        self._last_id = 0
        self._address = ("", 0)  # of the node

    # ---- connections ----

    def connect(self, port: int, *, will: bytes | None = None, will_qos: int = 2, will_delay: int = 0) -> bool:
        """Connect, and go on where the last connection ended. False: the connection was lost.

        Args:
            port: of a node.
            will: payload of the will, whose topic is `will`.
            will_qos: of the will.
            will_delay: Will Delay Interval in seconds, at level 5.
        """
        assert self.socket is None
        self._decoder = Decoder(self.level)
        self.seen = []
        self._address = "127.0.0.1", port
        try:
            self.socket = socket.create_connection(self._address, timeout=self.patience)
        except OSError:
            return False
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.history.add(Connecting(self.client_id, self.clean, will))
        packet = Connect(client_id=self.client_id, clean_start=self.clean, keep_alive=0, protocol_level=self.level)
        if self.level == 5 and not self.clean:
            packet.properties = {"session_expiry_interval": self.expiry}
        if self.asked:
            packet.properties["user_property"] = self.asked
        if will is not None:
            packet.will_topic, packet.will_payload, packet.will_qos = "will", will, will_qos
            if self.level == 5:
                packet.will_properties = {**properties_of(will), "will_delay_interval": will_delay}
        self.send(packet)
        while self.socket is not None and not self.seen:
            self._read(will)
        if self.socket is None:
            return False
        self._resend()
        return True

    def _resend(self) -> None:
        """Send again what is not acknowledged."""
        for out in list(self.outgoing.values()):
            if out.received:
                self.answer(Pubrel(packet_id=out.packet.packet_id))
            else:
                out.packet.dup = True
                self._send_publish(out.packet)
        for packet_id, filters in list(self.subscriptions.items()):
            self.send(Subscribe(packet_id=packet_id, topic_filters=filters))

    def lose(self) -> None:
        """The connection is gone, or is to be."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self.history.add(Ended(self.client_id, "lost"))

    def leave(self) -> None:
        """DISCONNECT, and wait for the end."""
        if self.socket is None:
            return
        self.history.add(Leaving(self.client_id))
        self.send(Disconnect())
        try:
            while self.socket is not None and self.socket.recv(65536):
                pass
        except OSError:
            self.lose()
        if self.socket is not None and self._node_has_ended():
            self.lose()  # the end may have been there before DISCONNECT
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self.history.add(Ended(self.client_id, "disconnect"))

    def _node_has_ended(self) -> bool:
        """Whether the node has refused what was sent last, or accepts no more connections."""
        assert self.socket is not None
        if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return True
        try:
            socket.create_connection(self._address, timeout=self.patience).close()
        except OSError:
            return True
        return False

    # ---- packets out ----

    def send(self, packet: Packet) -> None:
        """Send a packet, if there is a connection."""
        if self.socket is not None:
            try:
                self.socket.sendall(encode(packet, self.level))
            except OSError:
                self.lose()

    def answer(self, packet: Packet) -> None:
        """Send a packet unless the client keeps those to itself."""
        if type(packet) not in self.silent:
            self.send(packet)

    def _id(self) -> int:
        while True:
            self._last_id = self._last_id % 65535 + 1
            if self._last_id not in self.outgoing and self._last_id not in self.subscriptions:
                return self._last_id

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Publish; it is sent again on every connection until it is acknowledged."""
        packet = Publish(topic, payload, qos=qos, retain=retain, packet_id=self._id() if qos else 0)
        if self.level == 5:
            packet.properties = properties_of(payload)
        if qos:
            self.outgoing[packet.packet_id] = Outgoing(packet)
        self._send_publish(packet)

    def _send_publish(self, packet: Publish) -> None:
        self._note_publish(packet)
        self.send(packet)

    def _note_publish(self, packet: Publish) -> None:
        self.history.add(
            Published(self.client_id, packet.topic_name, packet.payload, packet.qos, packet.retain, packet.packet_id)
        )

    def subscribe(self, *topic_filters: tuple[str, int]) -> None:
        """Subscribe; asked again on every connection until it is acknowledged."""
        packet = Subscribe(packet_id=self._id(), topic_filters=list(topic_filters))
        self.subscriptions[packet.packet_id] = list(topic_filters)
        self.send(packet)

    # ---- packets in ----

    def _read(self, will: bytes | None = None) -> None:
        assert self.socket is not None
        try:
            data = self.socket.recv(65536)
        except OSError:  # also after `patience` seconds without a reply
            data = b""
        if not data:
            self.lose()
            return
        try:
            packets = self._decoder.feed(data)
        except MalformedPacket as error:
            self.history.add(Unexpected(self.client_id, f"the broker has sent an invalid packet: {error}"))
            self.lose()
            return
        for packet in packets:
            self.seen.append(packet)
            self._handle(packet, will)

    def read(self) -> None:
        """Take what has come. There must be something, or this waits."""
        self._read()

    def _handle(self, packet: Packet, will: bytes | None) -> None:
        add = self.history.add
        if isinstance(packet, Connack):
            if packet.reason_code:
                self.lose()
                return
            if self.level > 3:
                add(Connected(self.client_id, self.clean, packet.session_present, will))
                if not packet.session_present:
                    self.unreleased.clear()
            if self.subscribes_again and self.granted and not (packet.session_present and self.level > 3):
                self.subscriptions.setdefault(self._id(), list(self.granted))  # `connect` sends it
        elif isinstance(packet, Suback):
            wanted = self.subscriptions.pop(packet.packet_id, None)
            if wanted is None or len(wanted) != len(packet.reason_codes):
                add(Unexpected(self.client_id, f"{packet} answers no SUBSCRIBE"))
                return
            for (topic_filter, qos), code in zip(wanted, packet.reason_codes, strict=True):
                if code < FAILED:
                    add(Subscribed(self.client_id, topic_filter, code))
                else:
                    add(Unexpected(self.client_id, f"the subscription to {topic_filter} is refused with {code:#x}"))
                if (topic_filter, qos) not in self.granted and code < FAILED:
                    self.granted.append((topic_filter, qos))
        elif isinstance(packet, Publish):
            self._check_properties(packet)
            add(
                Delivered(
                    self.client_id,
                    packet.topic_name,
                    packet.payload,
                    packet.qos,
                    packet.packet_id,
                    packet.dup,
                    packet.retain,
                    (Puback if packet.qos == 1 else Pubrec) not in self.silent,
                )
            )
            if packet.qos < 2 or packet.packet_id not in self.unreleased:
                add(Taken(self.client_id, packet.payload))
                self.taken.add(packet.payload)
            if packet.qos == 1:
                self.answer(Puback(packet_id=packet.packet_id))
            elif packet.qos == 2:
                self.unreleased.add(packet.packet_id)
                self.answer(Pubrec(packet_id=packet.packet_id))
        elif isinstance(packet, Pubrel):
            self.unreleased.discard(packet.packet_id)
            self.answer(Pubcomp(packet_id=packet.packet_id))
        elif isinstance(packet, Puback | Pubrec) and packet.reason_code >= FAILED:
            self.outgoing.pop(packet.packet_id, None)  # refused: the broker has promised nothing
        elif isinstance(packet, Puback | Pubcomp):
            out = self.outgoing.pop(packet.packet_id, None)
            if out is not None:
                add(Acknowledged(self.client_id, out.packet.payload, type(packet).__name__.upper(), packet.packet_id))
        elif isinstance(packet, Pubrec) and packet.packet_id in self.outgoing:
            out = self.outgoing[packet.packet_id]
            if not out.received:
                add(Acknowledged(self.client_id, out.packet.payload, "PUBREC", packet.packet_id))
            out.received = True
            self.answer(Pubrel(packet_id=packet.packet_id))

    def _check_properties(self, packet: Publish) -> None:
        """The properties are the publisher's; the expiry interval has become shorter [5: MQTT-3.3.2-6]."""
        if not packet.properties:
            return
        wanted = properties_of(packet.payload)
        most = wanted.pop("message_expiry_interval") + LATE
        found = dict(packet.properties)
        if not 0 < found.pop("message_expiry_interval", 1) <= most or found != wanted:
            text = f"{packet.payload[:40]!r} has other properties than its publisher gave it: {packet.properties}"
            self.history.add(Unexpected(self.client_id, text))


class Fleet:
    """Clients that are served together."""

    def __init__(self, *clients: RecordedClient) -> None:
        self.clients = list(clients)

    def run_for(self, seconds: float) -> None:
        """Read and answer for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._step(left)

    def _step(self, timeout: float) -> None:
        connected = {client.socket: client for client in self.clients if client.socket is not None}
        for ready in select.select(list(connected), [], [], timeout)[0]:
            if connected[ready].socket is ready:
                connected[ready].read()
        if not connected:
            time.sleep(min(timeout, 0.01))

    def lose(self) -> None:
        """All connections are gone."""
        for client in self.clients:
            client.lose()
