"""A node's protocol side within the test's own process: real packets over socket pairs, but every step is a call.

Nothing runs by itself. `Node.run` works until nothing is left to do; blocks stay unconfirmed in a `KeepingStore` until
`confirm`; time passes with `advance`. A "crash" is to drop the node and build another one from the store's content of
some moment, so that every moment can be tried, and a failing case shrinks.
"""

import queue
import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connack, Connect, Packet
from flockmq._speedups.net.listener import Endpoint, Listener
from flockmq._speedups.net.reactor import Reactor
from flockmq.broker.auth.authenticator import Authenticator, Credentials, Exchange, ReasonCode, Verdict
from flockmq.broker.broker import Broker
from flockmq.broker.config.admin_config import TracesConfig
from flockmq.broker.config.limits_config import LimitsConfig
from flockmq.broker.config.schema import Config, MqttConfig, SharedConfig
from flockmq.broker.coordination.standalone import StandaloneFoundation, StandaloneLife
from flockmq.broker.handlers.dispatch import Dispatcher
from flockmq.broker.storage.store import Store
from tests.harness.deadline import DEADLINE

P = TypeVar("P")


class KeepingStore(Store):
    """Keeps all records in their order, and confirms them when the test asks for it.

    `after(n)` is the store as it would be if all had ended after the first n records and confirmations.
    """

    durable = True

    def __init__(self, blocks: list[bytes] | None = None) -> None:
        self.told: list[bytes | int] = list(blocks or [])  # a block, or a position to forget before
        self.done = len(self.told)  # of those, confirmed
        self._position = 1 + len(self.told)

    def open(self) -> Iterator[bytes]:
        return iter(self.after(len(self.told)))

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        pass

    def commit(self, block: bytes) -> None:
        self._position += 1
        self.told.append(block)

    @property
    def position(self) -> int:
        return self._position

    @property
    def size(self) -> int:
        return sum(map(len, self.after(len(self.told))))

    def forget_before(self, position: int) -> None:
        self.told.append(position)

    def close(self) -> None:
        pass

    def describe(self) -> str:
        return "for tests"

    def after(self, n: int) -> list[bytes]:
        blocks: list[bytes] = []
        first = 1
        for thing in self.told[:n]:
            if isinstance(thing, bytes):
                blocks.append(thing)
            else:
                del blocks[: max(0, thing - first)]
                first = max(first, thing)
        return blocks


class AllowAll:
    """Lets everybody in."""

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReasonCode.ACCEPTED)

    def exchange(self, credentials: Credentials, method: str) -> Exchange | None:
        return None


opened: list["Node"] = []  # by the running test, which ends them: their sockets must not wait for a collector


class Node:
    """The protocol side of a node over a store; `mqtt`, `shared`, `traces` and `limits` as in the configuration.

    A real store that writes in its thread is waited for in `run`.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        auto: bool = True,
        smallest: int = 1 << 40,
        authenticator: Authenticator | None = None,
        mqtt: dict[str, Any] | None = None,
        shared: dict[str, Any] | None = None,
        traces: dict[str, Any] | None = None,
        **limits: Any,
    ):
        self.store: Any = store or KeepingStore()
        self.auto = auto  # confirm each block at once
        self.limits = limits
        protocol = MqttConfig(**{"sys_interval": 0.0, "retry_interval": 5.0, **(mqtt or {})})
        config = Config(
            limits=replace(LimitsConfig(), **limits),
            mqtt=protocol,
            shared=replace(SharedConfig(), **(shared or {})),
            traces=replace(TracesConfig(), **(traces or {})),
        )
        self.clients: list[Client] = []
        self._again = False
        self._soon: list[Callable[[], object]] = []
        self._readers: dict[int, Callable[[], object]] = {}
        self.is_served = False
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.SimpleQueue()
        self.failures: list[Exception] = []  # reasons to end the node
        foundation = StandaloneFoundation(
            self.store, lambda *call: self._calls.put((call[0], call[1:])), fail=self.failures.append
        )
        self.broker = Broker(config, foundation, authenticator or AllowAll(), self)
        life = self.broker.coordinator.life
        assert isinstance(life, StandaloneLife)
        self._confirm = life._confirm
        self.reactor, self.router = self.broker.data_plane.reactor, self.broker.data_plane.router
        self.sessions, self.end_turn = self.broker.data_plane.sessions, self.broker.data_plane.end_turn
        self.reactor.attach(Dispatcher(self.broker))
        life.restore(smallest=smallest)
        self.broker.secret.loaded()
        self._kept = self.store.position - self.turn.sealed  # the first block that the store has not confirmed
        self.compaction = life.compaction
        self.wills = life.wills
        self._listener = socket.socket(socket.AF_UNIX)
        opened.append(self)
        self._listener.bind("")  # a free abstract name
        self._listener.listen(100)
        self._listener.setblocking(False)
        self.address = self._listener.getsockname()
        self.listener = Listener()
        self.reactor.listen(Endpoint(self.listener, self._listener))
        self._poll = select.poll()
        self._poll.register(self.reactor.fileno(), select.POLLIN)
        self.end_turn()
        self.run()

    # ---- the driver of its reactor ----

    def start(self, reactor: Reactor) -> None:
        """Only note it: there is no loop."""
        self.is_served = True

    def stop(self, reactor: Reactor) -> None:
        """Likewise."""
        self.is_served = False

    def wake(self, reactor: Reactor) -> None:
        self._again = True

    def call_soon(self, callback: Callable[[], object]) -> None:
        """`run` calls it."""
        self._soon.append(callback)

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        """`run` calls it while the descriptor is readable."""
        self._readers[fd] = callback

    def remove_reader(self, fd: int) -> None:
        del self._readers[fd]

    def _call_back(self) -> None:
        """Make the calls of the loop."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()
        for fd, callback in list(self._readers.items()):
            if select.select([fd], [], [], 0)[0]:
                callback()

    @property
    def turn(self) -> Any:
        return self.broker.data_plane.turn

    def counted(self, name: str) -> int:
        return self.turn.counted()[name]

    def run(self) -> None:
        """Work until nothing is left to do."""
        for _ in range(100_000):
            self._again = False
            self._call_back()
            self.reactor.run()
            if isinstance(self.store, KeepingStore):
                if self.auto and self.unconfirmed:
                    self.confirm()
            else:
                self._wait_for_store()
            if not self._again and not self._soon and not self._poll.poll(0):
                return
        raise AssertionError("the node spins")

    def _wait_for_store(self) -> None:
        """Act on all that a real store has confirmed, until it has confirmed everything."""
        while self._kept < self.store.position or not self._calls.empty():
            function, arguments = self._calls.get(timeout=DEADLINE)
            if function == self._confirm:
                self._kept += arguments[0]
            function(*arguments)

    @property
    def unconfirmed(self) -> int:
        return sum(isinstance(thing, bytes) for thing in self.store.told[self.store.done :])

    def confirm(self, blocks: int | None = None) -> None:
        """The store has kept the next blocks, or all of them."""
        wanted = self.unconfirmed if blocks is None else min(blocks, self.unconfirmed)
        if wanted:
            left = wanted
            while left or (self.store.told[self.store.done :] and isinstance(self.store.told[self.store.done], int)):
                left -= isinstance(self.store.told[self.store.done], bytes)
                self.store.done += 1
            self.turn.confirm(wanted)
            self.compaction.step()
            self.end_turn()

    def advance(self, ticks: int) -> None:
        """Let quarters of a second pass."""
        for _ in range(ticks):
            self.reactor.advance(1)
            self.broker.coordinator.life.tick()
            self.broker.retained_searches.tick()
            self.broker.data_plane.stuck_sessions.tick()
            self.run()

    def close(self) -> None:
        """As if killed: nothing more is stored or sent."""
        if self in opened:
            opened.remove(self)
        self.reactor.stop_listening()
        for client in self.clients:
            client.socket.close()
        for connection in self.reactor:
            connection.claimed = connection.connect = None
            connection.close("the test is over")
        self.clients.clear()
        self.reactor.abandon()
        self.reactor.close()


class Client:
    """One connection to a Node, packets by hand.

    Args:
        node: the node to connect to.
        client_id: send CONNECT with it; None: send nothing.
        connect: more fields of CONNECT.
    """

    def __init__(self, node: Node, client_id: str | None = None, *, level: int = 4, **connect: Any) -> None:
        self.node = node
        self.level = level
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(node.address)
        self.socket.setblocking(False)
        node.clients.append(self)  # a client without references stays connected
        self._decoder = Decoder(level)
        self.received: list[Packet] = []  # packets that have come and were not taken
        self.ended = False
        self.unsent = b""  # bytes that the socket did not take, because the node doesn't read
        if client_id is not None:
            self.send(Connect(client_id=client_id, protocol_level=level, **{"keep_alive": 0, **connect}))
        else:
            node.run()

    def write(self, *packets: Packet | bytes) -> None:
        """Send without letting the node work."""
        self.unsent += b"".join(p if isinstance(p, bytes) else encode(p, self.level) for p in packets)
        self.push()

    def push(self) -> None:
        """Send what the socket takes."""
        while self.unsent:
            try:
                sent = self.socket.send(self.unsent)
            except BlockingIOError:
                return
            except ConnectionError:
                sent = len(self.unsent)
            self.unsent = self.unsent[sent:]

    def send(self, *packets: Packet | bytes) -> None:
        """Send, and let the node work."""
        self.write(*packets)
        self.node.run()

    def read(self) -> "Client":
        """Read all that the node has sent."""
        quiet = False
        while not self.ended:
            self.push()
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                if quiet:
                    break
                quiet = True
                self.node.run()  # it may have more, now that there is room
                continue
            except ConnectionError:
                data = b""
            quiet = False
            self.ended = not data
            self.received += self._decoder.feed(data)
        return self

    def take(self) -> list[Packet]:
        """All packets that have come and were not taken yet."""
        self.read()
        taken, self.received = self.received, []
        return taken

    def take_one(self, kind: type[P]) -> P:
        """The only packet that has come."""
        (packet,) = self.take()
        assert isinstance(packet, kind), packet
        return packet

    def connack(self) -> Connack:
        """The CONNACK, which must have come first."""
        self.read()
        packet = self.received.pop(0)
        assert isinstance(packet, Connack)
        return packet

    def close(self) -> None:
        """Be gone, without a word."""
        self.socket.close()
        self.node.run()
