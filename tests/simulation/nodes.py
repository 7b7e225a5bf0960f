"""The nodes: the real `Node`, in an event loop of the world's time.

Its listener is a unix socket, whose other ends are here. The packets of clients arrive when the network delivers them;
the node's packets are taken after each iteration of its loop. So only the loop of the node is replaced.
"""

import select
import socket
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from flockmq.broker.config.load import load
from flockmq.broker.config.schema import Config
from flockmq.broker.node import Node
from flockmq.cluster.replication import foreign_records
from tests.simulation.loop import NodeLoop
from tests.simulation.network import Connection, Network
from tests.simulation.redis_server import RedisServer
from tests.simulation.transport import RedisDialer
from tests.simulation.world import MILLI, World

SETTINGS: dict[str, str] = {
    "cluster.lease": "2",
    "cluster.timeout": "1",
    "http.listen": "",
    "http.drain": "0",
    "log.level": "info",
    "limits.max_inflight": "20",
    "limits.max_queued_messages": "100000",
    "mqtt.session_expiry": "3000",  # longer than a run, shorter than the longest step of a wall clock
    "mqtt.sys_interval": "0",
    "shared.redispatch": "3",
}
CONNACK, DISCONNECT = 0x20, 0xE0

foreign_records.RETIRE_SECONDS = 0.0  # a run is short: in each tick


class ClientSocket:
    """The connection of a client at its node: an end of the network, and a socket to the node.

    Args:
        node: which the client has reached.
        connection: of the network.
        client_id: for the rule that a session has one connection.
    """

    def __init__(self, node: "SimulatedNode", connection: Connection, client_id: str) -> None:
        self.client_id = client_id
        self.opened_at = node.world.now
        self.admitted = 0  # the number of CONNACKs of its client before its own, from 1; 0 = it has none
        self.claimed_at = 0  # nanosecond by which Redis had its claim: of CONNACK, or of the reply that came later
        self.lost_at = 0  # nanosecond at which Redis died and lost its claim; 0 = it has not
        self.unclaimed = False  # it was admitted without Redis, and its node has no reply to its claim yet
        self.was_unclaimed = False  # it was admitted without Redis
        self._node = node
        self._connection = connection
        self._input = bytearray()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.setblocking(False)
        self.socket.connect(node.path)
        connection.to_b.end = self

    def receive(self, data: bytes) -> None:
        self._input += data
        self.push()

    def push(self) -> None:
        """Give the node what its socket takes."""
        if self._input:
            try:
                del self._input[: self.socket.send(self._input)]
            except BlockingIOError:
                return
            except OSError:
                self._input.clear()
        self._node.loop.wake()

    def ended(self, *, reset: bool) -> None:
        self.push()
        self._node.forget(self)
        self.socket.close()
        self._node.loop.wake()

    def pull(self) -> None:
        """Send the client what the node has written."""
        if self._input:
            self.push()
        data = bytearray()
        reset = ended = False
        try:
            while some := self.socket.recv(1 << 18):
                data += some
            ended = True
        except BlockingIOError:
            pass
        except OSError:
            ended = reset = True
        if data:
            self._node.wrote(self, bytes(data))
            self._connection.to_a.send(bytes(data))
        if ended:
            self._node.forget(self)
            self._connection.to_b.discard()
            self._connection.to_a.send(reset or bool(self._input))
            self.socket.close()

    def served(self, now: int) -> None:
        """The node has written to it."""
        self._connection.served_at = now

    def kill(self) -> None:
        """The node has been killed."""
        self.socket.close()
        self._connection.to_b.discard()
        self._connection.to_a.lose_some()
        self._connection.to_a.send(True)


def _dropped_by(node: Node) -> int:
    counted: dict[str, int] = node.broker.data_plane.turn.counted()
    return counted["dropped_queue_full"]


@dataclass
class Surroundings:
    """All that the nodes of a cluster share."""

    world: World
    network: Network
    servers: Mapping[str, RedisServer]  # of the run, by host
    keys: Callable[[], Mapping[bytes, Any]]  # returns the keys of the cluster
    label: str  # before the names of the hosts of the cluster
    folder: Path  # for their sockets
    clean: set[str]  # ids of the clients with clean sessions
    settings: dict[str, str]  # keys of their configuration, besides `SETTINGS`
    on_finding: Callable[[str], object]  # called with a sentence about something that must not be
    sockets_of: Callable[[str], list[ClientSocket]]  # returns the connections of a client at all nodes
    admissions: dict[str, int] = field(default_factory=dict)  # by client id: the number of CONNACKs, of all nodes
    # By client id: the connections that have had a CONNACK, also ended ones.
    admitted: dict[str, list[ClientSocket]] = field(default_factory=lambda: defaultdict(list))


class SimulatedNode:
    """One node, and its processes one after the other.

    Args:
        name: of the node; its host has the label of the cluster before it.
        around: of all nodes.
    """

    def __init__(self, name: str, around: Surroundings) -> None:
        self.world = around.world
        self._network = around.network
        self._servers = around.servers
        self._keys = around.keys
        self._admissions = around.admissions
        self._admitted = around.admitted
        self._clean = around.clean
        self._on_finding = around.on_finding
        self._sockets_of = around.sockets_of
        self.name = name
        self.host = around.label + name
        self.path = str(around.folder / f"{self.host}.sock")
        own = {"cluster.node_name": self.host, "listen": [f"unix:{self.path}"]}
        self.config: Config = load({**SETTINGS, **around.settings, **own}, env={})
        self.starts = 0
        self.troubles = 0  # reasons for which it may have closed connections: starts, stops, errors in its log
        self._dropped = 0  # messages that earlier processes have dropped at full queues
        self.ends: list[int] = []  # nanoseconds at which it was killed, or found that it had been declared dead
        self.backs: list[int] = []  # nanoseconds at which its link was repaired, or it had rejoined
        self.away_from: set[str] = set()  # the primaries that are away, as its log has it
        self.restarts = False  # it is started again whenever it ends
        self._up = False
        self._stops = False
        self._ended = False  # after a stop
        self.node: Node | None = None  # None: it was killed, and has not been started
        self._writes_left = 0  # until it is killed; 0 = it is not
        self._cut = False  # it was killed in this iteration: nothing leaves it any more
        self._sockets: dict[int, ClientSocket] = {}
        self._replied: list[ClientSocket] = []  # a reply to the claim of each is at the node
        self._poll = select.epoll()

    # ---- life ----

    @property
    def serves(self) -> bool:
        """Whether clients can connect."""
        return self.node is not None and self.node.serving

    @property
    def stops(self) -> bool:
        """Whether it has got SIGTERM."""
        return self._stops

    @property
    def is_down(self) -> bool:
        """Whether it has no process."""
        return not self._up

    @property
    def is_away(self) -> bool:
        """Whether its log has that a Redis is away."""
        return bool(self.away_from)

    def notice(self, redis: str, *, is_away: bool) -> None:
        """Its log has that a Redis is away, or is back."""
        if is_away:
            self.away_from.add(redis)
        else:
            self.away_from -= {redis, ""}

    @property
    def has_link(self) -> bool:
        """Whether it is a member of the cluster, and has a link to Redis."""
        return self.node is not None and self.node.coordinator.nodes.connected

    def leaves(self) -> None:
        """It rejoins: all that it has counted begins again."""
        if self.node is not None:
            self._dropped += _dropped_by(self.node)

    @property
    def dropped(self) -> int:
        """Messages that it has dropped at full queues, or knows that Redis has."""
        return self._dropped + (_dropped_by(self.node) if self.node is not None else 0)

    def start(self) -> None:
        """Start its process."""
        self._tell("starts")
        self.starts += 1
        self.troubles += 1
        self.away_from = set()
        self._up = True
        self._cut, self._writes_left, self._ended = False, 0, False
        self.dialer = RedisDialer(self._network, self._servers, self.host, self._may_write)
        self.loop = NodeLoop(self.world, self.host, self.dialer, self._left, self._failed)
        self.loop.create_task(self._main())

    async def _main(self) -> None:
        self.node = Node(self.config, lambda: self.config)
        await self.node.start()
        self._tell("is ready")
        try:
            await self.node.run()
        except Exception as error:
            self._on_finding(f"E0 {self.name} has ended: {error}")
        if self._stops:
            await self.node.stop()
            self._tell("has stopped")
            self._ended = True
        else:
            self._on_finding(f"E0 {self.name} has ended by itself")

    def kill(self) -> None:
        """kill -9."""
        if not self._up:
            return
        self._tell("is killed" if not self._stops else "ends")
        self._up = self._stops = False
        self.ends.append(self.world.now)
        node, self.node = self.node, None
        self.loop.kill()
        self.dialer.kill()
        for each in list(self._sockets.values()):
            self.forget(each)
            each.kill()
        if node is not None:
            self._dropped += _dropped_by(node)
            node.listeners.close()
            node.broker.data_plane.reactor.abandon()
        if self.restarts:
            self.world.after(100 * MILLI, self.start_if_down)

    def start_if_down(self) -> None:
        """Start its process, unless it has one."""
        if self.is_down:
            self.start()

    def stop(self) -> None:
        """SIGTERM."""
        if self.node is not None and self.serves:
            self._tell("is to stop")
            self._stops = True
            self.troubles += 1
            self.loop.call_soon(self.node.request_stop)

    def drain(self) -> None:
        """Its clients are to go to other nodes, and it takes no more until it is started again."""
        if self.node is not None and self.serves:
            self._tell("is drained")
            self.troubles += 1
            self.loop.call_soon(self.node.broker.draining.begin, lambda _reference: False)

    def close(self) -> None:
        """The run is over."""
        self.restarts = False
        self.kill()
        self._poll.close()

    def kill_at_write(self, number: int) -> None:
        """Kill it when it has sent so many pieces to Redis, within the turn that sends the last of them."""
        self._writes_left = number

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.node is not None:
            self._tell("stands still")
            self.loop.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        if self.node is not None and self.loop.frozen:
            self._tell("goes on")
            self.loop.thaw()

    def _may_write(self) -> bool:
        if self._writes_left:
            self._writes_left -= 1
            if not self._writes_left:
                self._cut = True
        return not self._cut

    def _tell(self, text: str) -> None:
        self.world.story.tell(self.world.now, self.host, text)

    def _failed(self, text: str) -> None:
        self._on_finding(f"E0 internal error at {self.name}: {text}")

    # ---- clients ----

    def accept(self, connection: Connection, client_id: str) -> None:
        """A client has connected."""
        try:
            if not self.serves:
                raise ConnectionRefusedError
            found = ClientSocket(self, connection, client_id)
        except OSError:
            connection.to_a.send(True)
            return
        self._sockets[found.socket.fileno()] = found
        self._poll.register(found.socket.fileno(), select.EPOLLIN)
        self.loop.wake()

    def forget(self, which: ClientSocket) -> None:
        """The connection is over."""
        fd = which.socket.fileno()
        if self._sockets.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _left(self) -> None:
        """After an iteration: bytes that the node has written leave it, or it is killed."""
        self.dialer.flush()
        if self._cut:
            self.kill()
            return
        if self._sockets:
            for fd, _ in sorted(self._poll.poll(0)):
                if fd in self._sockets:
                    self._sockets[fd].pull()
        for each in self._replied:
            each.unclaimed = False
        self._replied.clear()
        if self._ended:
            self.kill()

    def wrote(self, to: ClientSocket, data: bytes) -> None:
        """The node has written to a client: note CONNACK, and that no earlier connection of the client gets more."""
        kind = data[0] & 0xF0
        if kind != DISCONNECT or self._is_member():
            to.served(self.world.now)
        newest = self._admissions.get(to.client_id, 0)
        if not to.admitted:
            if kind == CONNACK and data[3] == 0:
                # Without Redis a node admits clean sessions, which other nodes do not have.
                to.admitted = self._admissions[to.client_id] = newest + (not self.is_away)
                to.unclaimed = to.was_unclaimed = self.is_away
                to.claimed_at = 0 if self.is_away else self.world.now
                self._admitted[to.client_id].append(to)
                self._renumber(to)
        elif to.admitted != newest and kind != DISCONNECT and not self._is_alone_with(to):
            self._on_finding(f"G5 {self.name} has written to a connection of {to.client_id} after a later one")

    def _is_member(self) -> bool:
        """Whether it has not been declared dead, or lost by Redis."""
        members = self._keys().get(b"mq:nodes")
        return self.node is not None and members is not None and self.node.coordinator.nodes.node_id.encode() in members

    def _renumber(self, earlier: ClientSocket) -> None:
        """CONNACK has come late for a connection: the client's later connections without Redis stay newer."""
        later = [
            each
            for each in self._sockets_of(earlier.client_id)
            if each.admitted and each.was_unclaimed and each.opened_at > earlier.opened_at
        ]
        for each in later:
            each.admitted = self._admissions[earlier.client_id] = earlier.admitted + 1

    def sockets_of(self, client_id: str) -> list[ClientSocket]:
        """The client's connections that it has."""
        return [each for each in self._sockets.values() if each.client_id == client_id]

    def claimed(self, client_id: str) -> None:
        """The reply of Redis to a claim of the node has arrived: it takes effect with the next turn.

        A connection that was admitted without Redis is the newest, if the client's later connections have ended, or
        have no CONNACK.

        Args:
            client_id: whose claim it is.
        """
        found = self.sockets_of(client_id)
        for each in found:
            others = self._sockets_of(client_id)
            later = max(other.admitted for other in others if other.opened_at >= each.opened_at)
            if each.unclaimed:
                each.claimed_at = self.world.now
            if each.unclaimed and each.admitted == later:
                each.admitted = self._admissions[client_id]
        self._replied += found

    def lose_claims(self, since: int) -> None:
        """Redis has died, and lost what it has executed from this nanosecond on."""
        for each in chain.from_iterable(self._admitted.values()):
            if each.claimed_at > since and not each.lost_at:
                each.lost_at = self.world.now

    def _is_alone_with(self, which: ClientSocket) -> bool:
        """Whether the node serves a session without knowing what others have done.

        It can't know of later connections if Redis has lost their claims, or that nodes were declared dead for which
        they waited, or has no claim of theirs yet. Nor what has happened since its link was lost, or cut: but it may
        serve a persistent session then only if Redis does not have that connection either.
        """
        later = [each for each in self._admitted[which.client_id] if each.admitted > which.admitted]
        if later and all(each.lost_at or each.unclaimed for each in later):
            return True
        if which.client_id in self._clean:
            return self.is_away or which.unclaimed
        is_unaware = not any(back > which.lost_at for back in self.backs)  # its link was cut when Redis died
        return bool(which.lost_at) and (self.is_away or is_unaware)
