"""The network: connections between hosts, whose two directions are delayed, cut and healed by themselves.

As TCP does, a direction keeps its bytes in order; while it is cut, they wait. An end that is reset, or whose process
was killed, loses some of the bytes on their way.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from tests.simulation.world import MICRO, MILLI, World

LATENCY = 250 * MICRO
SLOW = 60 * MILLI  # a packet that is sent again
HANDSHAKE = 400 * MICRO


class End(Protocol):
    """The process at one end of a connection."""

    def receive(self, data: bytes) -> None:
        """Bytes have arrived."""

    def ended(self, *, reset: bool) -> None:
        """The other end has closed; nothing follows."""


class Direction:
    """One direction of a connection.

    Args:
        network: it belongs to.
        source: the host that sends.
        target: the host that receives.
    """

    def __init__(self, network: "Network", source: str, target: str) -> None:
        self._network = network
        self.path = source, target
        self.end: End | None = None  # that receives; None: it has gone
        # Bytes; then whether the connection was reset. A call is made when all before it has arrived.
        self._items: deque[bytes | bool | Callable[[], object]] = deque()
        self._due = 0  # of the last item under way
        self._waiting = False  # for the cut to heal
        self._stalled = False
        self.has_lost = False  # something was under way when the receiver ended

    def send(self, item: bytes | bool) -> None:
        """Send bytes, or the end: True is a reset."""
        self._items.append(item)
        self._schedule()

    def finish(self) -> None:
        """Send the end in one piece with the bytes before it."""
        self._append(False)

    def when_arrived(self, call: Callable[[], object]) -> None:
        """Call when all that was sent has arrived."""
        self._append(call)

    def _append(self, item: bool | Callable[[], object]) -> None:
        self._items.append(item)
        self._network.world.at(self._due, self._deliver)

    def _schedule(self) -> None:
        world = self._network.world
        self._due = max(self._due, world.now + self._network.latency(self.path))
        world.at(self._due, self._deliver)

    def _deliver(self) -> None:
        if self._network.is_cut(self.path):
            self._network.wait(self)
            self._waiting = True
        if self._stalled:
            self._waiting = True
        if self._waiting or not self._items:
            return
        item, end = self._items.popleft(), self.end
        if end is None:
            return
        if isinstance(item, bytes):
            end.receive(item)
        elif callable(item):
            item()
        else:
            self.end = None
            end.ended(reset=item)

    def stall(self) -> None:
        """Nothing of this connection arrives this way, until `heal`."""
        self._stalled = True

    def heal(self) -> None:
        """The cut is over: send all that waits."""
        self._waiting = self._stalled = False
        for _ in range(len(self._items)):
            self._schedule()

    def lose_some(self) -> None:
        """The sender was killed: a part of the bytes on their way is lost, from some byte on."""
        rng = self._network.world.rng
        kept = rng.randrange(len(self._items) + 1)
        while len(self._items) > kept:
            item = self._items.pop()
            if len(self._items) == kept and isinstance(item, bytes) and rng.random() < 0.5:
                self._items.append(item[: rng.randrange(len(item) + 1)])
                break

    def discard(self) -> None:
        """The receiver is gone."""
        self.end, self.has_lost = None, bool(self._items)
        self._items.clear()


class Connection:
    """A connection; `a` has opened it.

    Args:
        network: it belongs to.
        a, b: the hosts.
    """

    def __init__(self, network: "Network", a: str, b: str) -> None:
        self.to_b = Direction(network, a, b)
        self.to_a = Direction(network, b, a)
        self.served_at = 0  # nanosecond at which `b` has written to it last


class Network:
    """All connections, and the cuts between hosts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._cuts: dict[tuple[str, str], int] = {}  # number of cuts of a path
        self._waiting: list[Direction] = []
        self.factor: dict[str, float] = {}  # by which a host's connections are slower

    def latency(self, path: tuple[str, str]) -> int:
        """Of the next bytes."""
        found = self.world.delay(LATENCY, SLOW)
        if self.factor:
            found = int(found * self.factor.get(path[0], 1) * self.factor.get(path[1], 1))
        return found

    def is_cut(self, path: tuple[str, str]) -> bool:
        """Whether nothing arrives this way."""
        return path in self._cuts

    def wait(self, direction: Direction) -> None:
        """Send again what a direction has, when its cut is healed."""
        if direction not in self._waiting:
            self._waiting.append(direction)

    def cut(self, source: str, target: str) -> None:
        """Nothing arrives at the target from this source, until `heal`."""
        path = source, target
        self._cuts[path] = self._cuts.get(path, 0) + 1

    def heal(self, source: str, target: str) -> None:
        """One cut of this path less."""
        path = source, target
        left = self._cuts.get(path, 0) - 1
        if left > 0:
            self._cuts[path] = left
            return
        self._cuts.pop(path, None)
        waiting = [direction for direction in self._waiting if direction.path == path]
        self._waiting = [direction for direction in self._waiting if direction.path != path]
        for direction in waiting:
            direction.heal()

    def open(self, source: str, target: str, arrive: Callable[[Connection], object]) -> None:
        """Begin a handshake: `arrive` is called at the target, as soon as packets pass both ways."""
        connection = Connection(self, source, target)
        self.world.after(self.latency((source, target)), self._arrive, connection, arrive)

    def _arrive(self, connection: Connection, arrive: Callable[[Connection], object]) -> None:
        if self.is_cut(connection.to_b.path) or self.is_cut(connection.to_a.path):
            self.world.after(200 * MILLI, self._arrive, connection, arrive)  # SYN is sent again
        else:
            arrive(connection)
