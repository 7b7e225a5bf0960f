"""The clients of `flockmq prove`, which keep a history, over the simulated network.

They connect again by themselves, mostly to another node, and notice a silent connection by PINGREQ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.errors import MalformedPacket
from flockmq._speedups.codec.packets import Connack, Connect, Disconnect, Pingreq, Puback, Publish
from flockmq.loadtest.prove.client import RecordedClient, properties_of
from flockmq.loadtest.prove.history import Connected, Connecting, Ended, Event, History, Leaving, Unexpected
from flockmq.loadtest.prove.transactor import Transacting
from tests.simulation.clock import NS
from tests.simulation.network import Connection, Network
from tests.simulation.timed import Life
from tests.simulation.world import MILLI, World

KEEP_ALIVE = 2  # seconds
PING = 1000 * MILLI
PATIENCE = 3000 * MILLI  # for a reply
ARRIVES = 200 * MILLI  # in which DISCONNECT is read, as long as nothing is broken


def shown(event: Event) -> str:
    """An event, as a line of the story of its client."""
    fields = " ".join(f"{key}={value!r}" for key, value in vars(event).items() if key != "client" and value != b"")
    return f"{type(event).__name__} {fields}"


class TimedHistory(History):
    """A history with the time of each event.

    Args:
        world: of the run.
        label: before the names of clients in the story.
    """

    def __init__(self, world: World, label: str = "") -> None:
        super().__init__()
        self._world = world
        self._label = label
        self.times: list[int] = []

    def add(self, event: Event) -> None:
        super().add(event)
        self.times.append(self._world.now)
        self._world.story.detail(self._world.now, self._label + event.client, lambda: shown(event))


class Wire:
    """The client's end of one connection; it is `RecordedClient.socket`.

    Args:
        client: it belongs to.
        connection: of the network.
    """

    def __init__(self, client: "SimulatedClient", connection: Connection) -> None:
        self._client = client
        self._connection = connection
        self.leaving = False  # DISCONNECT was sent
        connection.to_a.end = self

    def receive(self, data: bytes) -> None:
        if self._client.socket is self:
            self._client.on_data(data)

    def ended(self, *, reset: bool) -> None:
        self._connection.to_b.send(False)
        if self._client.socket is self:
            self._client.on_end(reset=reset)

    @property
    def has_left(self) -> bool:
        """Whether DISCONNECT has arrived."""
        return self.leaving and not self._connection.to_b.has_lost

    def sendall(self, data: bytes) -> None:
        """Send."""
        self._connection.to_b.send(data)

    def close(self) -> None:
        """The client has gone; bytes under way arrive, or some of them."""
        self._connection.to_a.discard()
        if self._client.loses_output():
            self._connection.to_b.lose_some()
        self._connection.to_b.send(True)


@dataclass
class SimulatedBroker:
    """The cluster, as its clients see it."""

    world: World
    network: Network
    ports: dict[str, Callable[[Connection, str], object]]  # by the name of a node: accepts a connection of a client id
    # Of a node, by name: a number that grows when it may close connections without reading them.
    troubles: Callable[[str], int]
    is_forgotten: Callable[[], bool] = bool  # it may have forgotten subscriptions: clients subscribe again
    # Whether Redis may have lost a claim that it executed between two times, and no replica has it.
    is_lost: Callable[[int, int], bool] = lambda since, until: False
    # Called with a client id and the time of the CONNECT when CONNACK has come, or the client has given up.
    on_waited: Callable[[str, int], object] = lambda client_id, since: None
    label: str = ""  # before the names of nodes and clients: their hosts
    first: int = 0  # before the number of the first connection of a client: the wills of clusters differ


@dataclass
class Habits:
    """All that a client does by itself."""

    seed: int
    filters: tuple[tuple[str, int], ...] = ()  # subscribed to at first, or with each connection if it is clean
    wills: bool = False  # its connections have wills
    delay: int = 0  # Will Delay Interval in seconds; above 0 its wills are judged by timed.py
    early: int = 0  # nanoseconds by which its session may expire early
    gives_up: bool = True  # it ends a connection without a CONNACK after a while
    largest: int = 0  # Maximum Packet Size in bytes; 0: none


class SimulatedClient(RecordedClient):
    """A client.

    Args:
        client_id: its id; its host has the label of the cluster before it.
        broker: to connect to.
        history: of the run.
        habits: of the client.
        options: as of `RecordedClient`.
    """

    socket: Any

    def __init__(
        self, client_id: str, broker: SimulatedBroker, history: History, habits: Habits, **options: Any
    ) -> None:
        super().__init__(history, client_id, **options)
        self._world = broker.world
        self._network = broker.network
        self._ports = broker.ports
        self._troubles = broker.troubles
        self._is_forgotten = broker.is_forgotten
        self._is_lost = broker.is_lost
        self._on_waited = broker.on_waited
        self._rng = Random(habits.seed)
        self._filters = habits.filters
        self._wills = habits.wills
        self._delay = habits.delay
        self._early = habits.early
        self._largest = habits.largest
        self._gives_up = habits.gives_up
        self.node = ""  # of its last connection
        self._troubles_before = 0  # of that node, when the connection began
        self._asked_at = 0  # time of the last CONNECT
        self._left_at = 0  # nanosecond of the last DISCONNECT
        self.lives: list[Life] = []  # its connections, if its wills are delayed
        self.has_vanished = False
        self._label = broker.label
        self._attempts = broker.first
        self._seen_at = 0
        self._will: bytes | None = None
        self.accepted = False
        self.stays_away = False
        self._packets_left = 0  # until it loses the connection; 0 = it does not
        self._stays_away_then = False
        self._trying = 0  # number of the attempt that is under way; 0 = none
        self._starts_anew = False  # its next CONNECT asks for Clean Start

    @property
    def filters(self) -> tuple[tuple[str, int], ...]:
        """Its topic filters, with their QoS."""
        return self._filters

    # ---- connections ----

    def come(self, node: str = "") -> None:
        """Connect to a node; without a name to any."""
        if self.socket is not None or self._trying or self.stays_away:
            return
        self._attempts += 1
        attempt = self._trying = self._attempts
        name = node or self._rng.choice(sorted(self._ports))
        host, target = self._label + self.client_id, self._label + name
        self._network.open(host, target, lambda connection: self._arrived(name, attempt, connection))
        if self._gives_up:
            self._world.after(PATIENCE, self._give_up, attempt)

    def _give_up(self, attempt: int) -> None:
        """The handshake, or CONNACK, takes too long."""
        if attempt != self._attempts or self.accepted:
            return
        self._trying = 0
        if self.socket is not None:
            self._on_waited(self.client_id, self._asked_at)
            self.lose()
        else:
            self.come_later()

    def come_later(self) -> None:
        """Connect after a while."""
        self._world.after(int(self._rng.uniform(20, 400) * MILLI), self.come)

    def _arrived(self, node: str, attempt: int, connection: Connection) -> None:
        if attempt != self._trying:
            return
        wire = Wire(self, connection)
        self._trying = 0
        self.node, self._troubles_before = node, self._troubles(node)
        self.accepted = False
        self._decoder = Decoder(self.level)
        self.seen = []
        self.socket = wire
        self._will = b"will %s %d" % (self.client_id.encode(), attempt) if self._wills else None
        self._asked_at = self._world.now
        if self._delay and self._will:
            self._live(self._will, connection)
        self.history.add(Connecting(self.client_id, self.clean, None if self._delay else self._will))
        self.send(self._connect_packet())
        self._ports[node](connection, self.client_id)

    def _live(self, will: bytes, connection: Connection) -> None:
        """A connection begins whose will is delayed, of a session that expires."""
        life = Life(self.client_id, will, self._delay, self.expiry, connection, self._world.now)
        for each in self.lives:
            each.after = each.after or life
        self.lives.append(life)

    def _admit(self, *, present: bool) -> None:
        """CONNACK has come for a connection whose will is delayed: perhaps after the end of the session."""
        admitted = [each for each in self.lives if each.admitted and not self._is_lost(each.came, each.admitted)]
        if admitted and self._world.now > admitted[-1].connection.served_at + self.expiry * NS - self._early:
            self.forget()
            self.history.add(Connecting(self.client_id, self.clean))
        self.lives[-1].admitted, self.lives[-1].present = self._world.now, present

    def forget(self) -> None:
        """The session may have expired: nothing is certain about it."""
        self.history.add(Connecting(self.client_id, True))
        self.history.add(Ended(self.client_id, "lost"))

    def _connect_packet(self) -> Connect:
        packet = Connect(
            client_id=self.client_id, clean_start=self.clean, keep_alive=KEEP_ALIVE, protocol_level=self.level
        )
        if self.level == 5 and (self._starts_anew or not self.clean):
            packet.properties = {"session_expiry_interval": self.expiry}
        if self.level == 5 and self._largest:
            packet.properties["maximum_packet_size"] = self._largest
        if self._will is not None:
            packet.will_topic, packet.will_payload, packet.will_qos = "will", self._will, 2
            if self.level == 5:
                packet.will_properties = {**properties_of(self._will), "will_delay_interval": self._delay}
        return packet

    def lose(self) -> None:
        if self.socket is not None:
            super().lose()
            self._end_life()
            self.accepted = False
            self.come_later()

    def _end_life(self, noticed_after: int = 0) -> None:
        if self.lives and not self.lives[-1].ended:
            self.lives[-1].ended = self._world.now
            self.lives[-1].noticed = self._world.now + noticed_after

    def loses_output(self) -> bool:
        """Whether the end of a connection takes bytes with it that are under way."""
        return self._stays_away_then or self._rng.random() < 0.5

    def lose_at_packet(self, number: int, *, stays_away: bool = False) -> None:
        """Lose the connection when so many packets have arrived; the answer to the last may be lost.

        Args:
            number: of packets; 0: keep the connection.
            stays_away: whether it does not connect then until `come_back`; some of its answers are lost then, or all.
        """
        self._packets_left = number
        self._stays_away_then = stays_away

    def stay_away(self) -> None:
        """Lose the connection, also one that is being opened, and do not connect until `come_back`."""
        self.stays_away, self._trying = True, 0
        self.lose()

    def come_back(self, node: str = "") -> None:
        """Connect again, to this node or any."""
        self.stays_away, self._stays_away_then = self.has_vanished, False
        self.come(node)

    def vanish(self) -> None:
        """Lose the connection, and never connect again."""
        self.has_vanished = True
        self.stay_away()

    def leave(self) -> None:
        """Send DISCONNECT; the node closes the connection."""
        if self.socket is not None and self.accepted:
            self.history.add(Leaving(self.client_id))
            self.send(Disconnect())
            self.socket.leaving, self._left_at = True, self._world.now

    def abandon(self, node: str = "") -> None:
        """Connect again, and leave the old connection open, as a client behind a broken network does."""
        if self.socket is not None:
            self.socket = None
            self.history.add(Ended(self.client_id, "lost"))
            self.accepted = False
            self._end_life(KEEP_ALIVE * 3 * NS // 2)  # unless the next connection ends it
            self.come(node)

    def start_anew(self, node: str, *, subscribes: bool = True) -> None:
        """Connect to a node with Clean Start, and leave the old connection open: the session begins again (level 5).

        Args:
            subscribes: whether it subscribes to its topic filters again.
        """
        self.clean = self._starts_anew = True
        self._filters = self._filters if subscribes else ()
        self.abandon(node)

    def on_end(self, *, reset: bool) -> None:
        """The node has closed the connection."""
        left = self.socket.has_left and not reset
        self.socket = None
        self.accepted = False
        # A node in trouble closes connections whether or not it has read DISCONNECT; so does one that reads it late.
        steady = self._troubles(self.node) == self._troubles_before and self._world.now - self._left_at < ARRIVES
        self.history.add(Ended(self.client_id, "disconnect" if left and steady else "lost"))
        self._end_life()
        self.come_later()

    # ---- packets ----

    def on_data(self, data: bytes) -> None:
        """The node has sent bytes."""
        self._seen_at = self._world.now
        try:
            packets = self._decoder.feed(data)
        except MalformedPacket as error:
            self.unexpected(f"the broker has sent an invalid packet: {error}")
            self.lose()
            return
        wire = self.socket
        for packet in packets:
            self.seen.append(packet)
            if isinstance(packet, Connack) and self.lives and not packet.reason_code:
                self._admit(present=packet.session_present)
            self._handle(packet, None if self._delay else self._will)
            if isinstance(packet, Connack) and self.socket is wire:
                self._begin()
            if self._packets_left:
                self._packets_left -= 1
                if not self._packets_left:
                    self.stays_away = self.stays_away or self._stays_away_then
                    self.lose()
            if self.socket is not wire:
                return

    def unexpected(self, text: str) -> None:
        """Note a finding."""
        self.history.add(Unexpected(self.client_id, text))

    def _begin(self) -> None:
        """CONNACK has come: send again what is not acknowledged."""
        self.accepted = True
        self._on_waited(self.client_id, self._asked_at)
        is_new = self.clean
        if is_new:
            self.subscriptions.clear()
            self.unreleased.clear()
        if self._starts_anew:
            self._go_on_anew()
        self._resend()
        if self._filters and not self.subscriptions and (is_new or not self.granted or self._is_forgotten()):
            self.subscribe(*self._filters)
        self._world.after(PING, self._ping, self.socket)

    def _go_on_anew(self) -> None:
        """A session has begun by Clean Start. It stays: for the checkers, too, this connection ends it no more."""
        self.clean = self._starts_anew = False
        self.outgoing.clear()
        self.history.add(Connecting(self.client_id, False))
        self.history.add(Connected(self.client_id, False, False, None))

    def _ping(self, wire: Wire) -> None:
        if self.socket is not wire:
            return
        if self._world.now - self._seen_at > PATIENCE:
            self.lose()
            return
        self.send(Pingreq())
        self._world.after(PING, self._ping, wire)

    @property
    def is_idle(self) -> bool:
        """Connected, with nothing unacknowledged; or it never comes back."""
        return self.has_vanished or (self.accepted and not self.outgoing and not self.subscriptions)


class SimulatedTransactor(Transacting, SimulatedClient):
    """A client that publishes in transactions. If Redis has lost data, it may have lost staged chunks."""

    def __init__(
        self, client_id: str, broker: SimulatedBroker, history: History, habits: Habits, **options: Any
    ) -> None:
        super().__init__(client_id, broker, history, habits, **options)
        self.prepare(Random(habits.seed), broker.first)

    def refused(self, command: Publish, answer: Puback) -> None:
        if not self._is_forgotten():
            super().refused(command, answer)

    def _connect_packet(self) -> Connect:
        packet = super()._connect_packet()
        packet.properties["user_property"] = self.asked
        return packet
