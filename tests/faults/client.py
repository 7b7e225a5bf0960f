"""Clients that do what the standard asks of a client, over any number of connections, and write down all of it.

A client keeps its half of the session: what it published and was not acknowledged goes out again, in order and with
DUP, and a QoS 2 message is taken once. It can be told to keep an answer to itself (`silent`), to stop at any step of a
flow.
Nothing runs by itself: `Fleet.run` reads and answers until something has happened.
"""

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from _speedups.codec.decode import Decoder
from _speedups.codec.encode import encode
from _speedups.codec.packets import (
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
from _speedups.codec.reason_codes import ReasonCode
from tests.faults.history import (
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
)
from tests.harness.broker_process import until
from tests.harness.deadline import DEADLINE

NEVER = 0xFFFFFFFF  # a Session Expiry Interval
# Seconds by which a node may have the clock of the cluster too late: as long as the reply of Redis took that it has it
# from. A node that could not reach Redis may have waited for that reply during all of the outage.
LATE = 60
UNAVAILABLE = 3  # CONNACK's code of a broker that can't reach its store: come again


@dataclass
class Outgoing:
    """A message that the broker has not taken over completely."""

    packet: Publish
    received: bool = False  # PUBREC has come


def properties_of(payload: bytes) -> dict[str, Any]:
    """The properties that a client of level 5 gives a message: they name it, and it expires long after the test."""
    return {"message_expiry_interval": 1_000_000, "user_property": [("checksum", f"{crc32(payload):08x}")]}


class FaultClient:
    """A client; not connected yet.

    Args:
        history: where everything is written down.
        client_id: its id.
        clean: CONNECT's clean session flag.
        level: protocol level.
        expiry: Session Expiry Interval in seconds, at level 5 of a client that is not clean.
    """

    def __init__(
        self, history: History, client_id: str, *, clean: bool = False, level: int = 4, expiry: int = NEVER
    ) -> None:
        self.history = history
        self.client_id = client_id
        self.clean = clean
        self.level = level
        self.expiry = expiry
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
        """Connect, and go on where the last connection ended. False: the connection was lost meanwhile.

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
            self.socket = socket.create_connection(self._address, timeout=DEADLINE)
        except OSError:
            return False
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.history.add(Connecting(self.client_id, self.clean, will))
        packet = Connect(client_id=self.client_id, clean_start=self.clean, keep_alive=0, protocol_level=self.level)
        if self.level == 5 and not self.clean:
            packet.properties = {"session_expiry_interval": self.expiry}
        if will is not None:
            packet.will_topic, packet.will_payload, packet.will_qos = "will", will, will_qos
            if self.level == 5:
                packet.will_properties = {**properties_of(will), "will_delay_interval": will_delay}
        self.send(packet)
        while self.socket is not None and not self.seen:
            self._read(will)
        if self.socket is None:
            return False
        for out in list(self.outgoing.values()):
            if out.received:
                self.answer(Pubrel(packet_id=out.packet.packet_id))
            else:
                out.packet.dup = True
                self._send_publish(out.packet)
        for packet_id, filters in list(self.subscriptions.items()):
            self.send(Subscribe(packet_id=packet_id, topic_filters=filters))
        return True

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
            socket.create_connection(self._address, timeout=DEADLINE).close()
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

    def reconnect(self, port: int) -> None:
        """Connect, as often as the node closes the connection: one that was killed may have to rejoin the cluster."""
        until(lambda: self.connect(port), f"{self.client_id} connects")

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Publish; it is sent again on every connection until it is acknowledged."""
        packet = Publish(topic, payload, qos=qos, retain=retain, packet_id=self._id() if qos else 0)
        if self.level == 5:
            packet.properties = properties_of(payload)
        if qos:
            self.outgoing[packet.packet_id] = Outgoing(packet)
        self._send_publish(packet)

    def _send_publish(self, packet: Publish) -> None:
        self.history.add(
            Published(self.client_id, packet.topic_name, packet.payload, packet.qos, packet.retain, packet.packet_id)
        )
        self.send(packet)

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
        except TimeoutError:
            raise AssertionError(f"{self.client_id}: nothing came in {DEADLINE} s") from None
        except OSError:
            data = b""
        if not data:
            self.lose()
            return
        for packet in self._decoder.feed(data):
            self.seen.append(packet)
            self._handle(packet, will)

    def read(self) -> None:
        """Take what has come. There must be something, or this waits."""
        self._read()

    def _handle(self, packet: Packet, will: bytes | None) -> None:
        add = self.history.add
        if isinstance(packet, Connack):
            assert packet.reason_code in (0, UNAVAILABLE, ReasonCode.SERVER_UNAVAILABLE), packet
            if packet.reason_code:
                self.lose()
                return
            if self.level > 3 and not packet.session_present:
                self.unreleased.clear()
            if self.level > 3:
                add(Connected(self.client_id, self.clean, packet.session_present, will))
        elif isinstance(packet, Suback):
            wanted = self.subscriptions.pop(packet.packet_id)
            for (topic_filter, _), code in zip(wanted, packet.reason_codes, strict=True):
                add(Subscribed(self.client_id, topic_filter, code))
        elif isinstance(packet, Publish):
            if packet.properties:
                left = packet.properties.pop("message_expiry_interval")
                wanted = properties_of(packet.payload)
                assert 0 < left <= wanted.pop("message_expiry_interval") + LATE, (left, packet)
                assert packet.properties == wanted, packet
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


class Fleet:
    """Clients that are served together."""

    def __init__(self, *clients: FaultClient) -> None:
        self.clients = list(clients)

    def run_for(self, seconds: float) -> None:
        """Read and answer for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._step(left)

    def run(self, until: Callable[[], bool], what: str = "") -> None:
        """Read and answer until something is so."""
        end = time.monotonic() + DEADLINE
        while not until():
            assert time.monotonic() < end, f"it did not happen: {what}"
            self._step(0.5)

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
