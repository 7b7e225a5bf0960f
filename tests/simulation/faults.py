"""The steps of a plan, as they are done: a method each. `heal` ends all faults."""

from collections.abc import Callable
from functools import partial

from flockmq._speedups.cluster.sharded_journal import shard_of
from tests.simulation.clients import SimulatedClient, SimulatedTransactor
from tests.simulation.network import Direction, Network
from tests.simulation.nodes import SimulatedNode
from tests.simulation.plan import Step
from tests.simulation.redis_client import LastCommand
from tests.simulation.redis_server import RedisServer
from tests.simulation.timed import PREFIX
from tests.simulation.world import MILLI, World

REDIS = "redis"  # in steps: the host of the cluster's Redis
WINDOW = 20  # unacknowledged messages of a publisher
# Steps that are no fault of the cluster: each client gets its service all the while.
OF_CLIENTS = {
    "nothing",
    "publish",
    "subscribe_again",
    "transact",
    "keep",
    "lose",
    "lose_at_packet",
    "abandon",
    "move",
    "move_to_node_of",
    "come_back",
    "come_back_away_from",
    "start_anew",
    "start_empty",
    "leave",
    "away",
    "away_at_packet",
    "vanish",
    "delay",
}


class Actions:
    """Does the steps.

    Args:
        world: of the run.
        network: of the run.
        servers: of the shards of the cluster; a step concerns one of them, by its time.
        nodes: by name.
        clients: by name.
        label: before the names of the cluster's hosts.
        first: before the number of the first message.
        everywhere: the actions of all clusters of the run.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        servers: list[RedisServer],
        nodes: dict[str, SimulatedNode],
        clients: dict[str, SimulatedClient],
        *,
        label: str = "",
        first: int = 0,
        everywhere: "list[Actions]",
    ) -> None:
        self._world = world
        self._network = network
        self._servers = servers
        self._redis = servers[0]
        self._nodes = nodes
        self._clients = clients
        self._ends: list[Callable[[], object]] = []  # of faults that go on
        self._stalled: list[Direction] = []
        self._label = label
        self._everywhere = everywhere
        self._count = first
        self.published = 0
        self.times_away: list[tuple[RedisServer, int, int]] = []  # servers that did not reply, from when and until when
        self.asked: list[tuple[int, str, int]] = []  # subscriptions made again: time, client, home of its node

    def do(self, step: Step) -> None:
        """Do a step."""
        if step.kind not in ("publish", "nothing"):
            text = f"{step.kind} {' '.join(map(str, step.arguments))}"
            self._world.story.tell(self._world.now, f"{self._label}plan", text)
        if step.kind not in OF_CLIENTS:
            self._redis = self._servers[step.time % len(self._servers)]
            for server in self._servers:
                server.first_fault = min(server.first_fault, self._world.now)
        getattr(self, step.kind)(*step.arguments)

    def heal(self) -> None:
        """End all faults; start the nodes that are dead."""
        self._world.story.tell(self._world.now, f"{self._label}plan", "all faults end")
        for end in list(self._ends):
            end()
        for server in self._servers:
            server.end_with(None)
        for client in self._clients.values():
            client.lose_at_packet(0)
        for node in self._nodes.values():
            node.kill_at_write(0)
            node.restarts = True
            node.start_if_down()

    def at_command(self, name: str, word: str, number: int, kind: str, *arguments: object) -> None:
        """Do another step when Redis has executed the n-th command of a node that has this word."""

        def then() -> None:
            self._world.after(0, self.do, Step(0, kind, arguments))  # not within the command

        self._redis.end_with(LastCommand(self._links_of(name), word.encode(), number, ends=False, then=then))

    def _links_of(self, node: str) -> bytes:
        """Beginning of the names of a node's connections to Redis."""
        return f"flockmq-{self._label}{node}-".encode()

    def _host(self, name: str) -> str:
        """The host of a node, of a client, or of the cluster's Redis."""
        return self._redis.host if name == REDIS else self._label + name

    def _until(self, milliseconds: int, end: Callable[[], object]) -> None:
        def ends() -> None:
            if ends in self._ends:
                self._ends.remove(ends)
                end()

        self._ends.append(ends)
        self._world.after(milliseconds * MILLI, ends)

    # ---- clients ----

    def nothing(self, *_: object) -> None:
        """A step that was left out."""

    def publish(self, name: str, topic: str, qos: int, count: int) -> None:
        """Publish messages, as far as the window allows."""
        client = self._clients[name]
        for _ in range(count):
            if client.accepted and len(client.outgoing) < WINDOW:
                self._count += 1
                self.published += 1
                client.publish(topic, b"%s/%d" % (name.encode(), self._count), qos)

    def subscribe_again(self, name: str) -> None:
        """Subscribe once more to what a client has, unless it waits for SUBACK."""
        client = self._clients[name]
        node = self._nodes[client.node].node
        if client.accepted and client.granted and not client.subscriptions and node is not None:
            home = shard_of(node.coordinator.nodes.node_id.encode(), len(self._servers))
            self.asked.append((self._world.now, name, home))
            client.subscribe(*client.filters)

    def transact(self, name: str) -> None:
        """Begin a transaction, unless one is under way."""
        client = self._clients[name]
        assert isinstance(client, SimulatedTransactor)
        if client.accepted:
            client.transact()

    def delay(self, name: str, seconds: int, qos: int, count: int) -> None:
        """Publish messages that are due later."""
        self.publish(name, f"{PREFIX}{seconds}/d/0", qos, count)

    def keep(self, topic: int, clears: bool) -> None:
        """Set or clear a retained message."""
        client = self._clients["keeper"]
        if client.accepted and len(client.outgoing) < WINDOW:
            self._count += 1
            client.publish(f"kept/{topic}", b"" if clears else b"value %d" % self._count, 1, retain=True)

    def lose(self, name: str) -> None:
        """A client's connection ends without DISCONNECT."""
        self._clients[name].lose()

    def lose_at_packet(self, name: str, number: int) -> None:
        """A client's connection ends when so many packets have arrived."""
        self._clients[name].lose_at_packet(number)

    def abandon(self, name: str) -> None:
        """A client connects while the node still has its earlier connection."""
        self._clients[name].abandon()

    def move(self, name: str, node: str) -> None:
        """A client connects to this node, and leaves its earlier connection open."""
        self._clients[name].abandon(node)

    def move_to_node_of(self, name: str, other: str) -> None:
        """A client connects to the node of another client, and leaves its earlier connection open."""
        self.move(name, self._clients[other].node)

    def come_back_away_from(self, name: str, other: str) -> None:
        """A client that is away connects to a node that another client does not have."""
        found = [node for node in sorted(self._nodes) if node != self._clients[other].node]
        self._clients[name].come_back(self._world.rng.choice(found))

    def start_anew(self, name: str, node: str) -> None:
        """A client connects to this node with Clean Start, and leaves its earlier connection open."""
        self._clients[name].start_anew(node)

    def start_empty(self, name: str, node: str) -> None:
        """The same, and it subscribes to nothing any more."""
        self._clients[name].start_anew(node, subscribes=False)

    def leave(self, name: str) -> None:
        """A client sends DISCONNECT."""
        self._clients[name].leave()

    def away(self, name: str, milliseconds: int) -> None:
        """A client has no connection for a while."""
        client = self._clients[name]
        client.stay_away()
        self._until(milliseconds, client.come_back)

    def come_back(self, name: str, node: str = "") -> None:
        """A client that is away connects again, to this node or any."""
        self._clients[name].come_back(node)

    def away_at_packet(self, name: str, number: int, milliseconds: int) -> None:
        """A client loses its connection when so many packets have arrived, and has none for a while."""
        client = self._clients[name]
        client.lose_at_packet(number, stays_away=True)
        self._until(milliseconds, client.come_back)

    def vanish(self, name: str) -> None:
        """A client loses its connection, and never comes back."""
        self._clients[name].vanish()

    # ---- nodes ----

    def kill(self, name: str, milliseconds: int) -> None:
        """kill -9; start it after a while."""
        node = self._nodes[name]
        node.kill()
        self._until(milliseconds, node.start_if_down)

    def kill_node_of(self, client: str, milliseconds: int) -> None:
        """kill -9 the node of a client; start it after a while."""
        if client_node := self._clients[client].node:
            self.kill(client_node, milliseconds)

    def kill_at_write(self, name: str, number: int, milliseconds: int) -> None:
        """kill -9 in the turn in which it sends the n-th piece to Redis; start it after a while."""
        node = self._nodes[name]
        node.kill_at_write(number)
        self._until(milliseconds + 500, node.start_if_down)

    def kill_at_command(self, client: str, word: str, number: int, executes: bool, milliseconds: int) -> None:
        """kill -9 the node of a client when Redis has its n-th command that has this word; start it after a while.

        Redis executes this command, or gets only a part of it; it gets nothing that follows.
        """
        node = self._clients[client].node
        name = self._links_of(node)
        last = LastCommand(name, word.encode(), number, executes, replies=False, then=lambda: self._later_kill(node))
        self._redis.end_with(last)
        self._until(milliseconds + 500, self._nodes[node].start_if_down)

    def _later_kill(self, name: str) -> None:
        self._world.after(0, self._nodes[name].kill)  # not within the command

    def stop(self, name: str, milliseconds: int) -> None:
        """SIGTERM; start it after a while."""
        node = self._nodes[name]
        node.stop()
        self._until(milliseconds + 1000, node.start_if_down)

    def drain(self, name: str, milliseconds: int) -> None:
        """Drain a node: its clients go to others. SIGTERM after a while, and start it."""
        node = self._nodes[name]
        node.drain()
        self._until(milliseconds, node.stop)
        self._until(milliseconds + 1000, node.start_if_down)

    def freeze(self, name: str, milliseconds: int) -> None:
        """SIGSTOP, then SIGCONT."""
        node = self._nodes[name]
        node.freeze()
        self._until(milliseconds, node.thaw)

    def freeze_node_of(self, client: str, milliseconds: int) -> None:
        """SIGSTOP the node of a client, then SIGCONT."""
        self.freeze(self._clients[client].node, milliseconds)

    def step_clock(self, host: str, milliseconds: int) -> None:
        """The wall clock of a machine is set."""
        self._world.step_clock(self._host(host), milliseconds * MILLI)

    # ---- network ----

    def cut(self, a: str, b: str, ways: str, milliseconds: int) -> None:
        """Nothing passes between two hosts, in both ways or in one."""
        a, b = self._host(a), self._host(b)
        paths = [(a, b)] * (ways != "back") + [(b, a)] * (ways != "there")
        for path in paths:
            self._network.cut(*path)
        self._until(milliseconds, lambda: [self._network.heal(*path) for path in paths])

    def cut_node_of(self, client: str, ways: str, milliseconds: int) -> None:
        """Nothing passes between the node of a client and Redis, in both ways or in one."""
        self.cut(self._clients[client].node, REDIS, ways, milliseconds)

    def slow(self, host: str, factor: int, milliseconds: int) -> None:
        """A host's network is slow."""
        host = self._host(host)
        self._network.factor[host] = factor
        self._until(milliseconds, lambda: self._network.factor.pop(host, None))

    def stall_link(self, name: str, milliseconds: int) -> None:
        """A node's bytes over its connections of now to Redis are late: packets were lost, and are sent again."""
        inputs = [each.input for each in self._redis.clients.values() if each.name.startswith(self._links_of(name))]
        for each in inputs:
            each.stall()
        self._stalled += inputs
        self._until(milliseconds, self.end_stalls)

    def end_stalls(self) -> None:
        """Late bytes arrive."""
        while self._stalled:
            self._stalled.pop().heal()

    def reset_link(self, name: str) -> None:
        """The connections of a node to Redis are reset."""
        for client in list(self._redis.clients.values()):
            if client.name.startswith(self._links_of(name)):
                self._redis.reset(client)

    def end_link_with(self, name: str, word: str, number: int) -> None:
        """The link of a node ends with the reply to the n-th command that has this word."""
        self._redis.end_with(LastCommand(self._links_of(name), word.encode(), number))

    def lose_reply(self, client: str, word: str, number: int) -> None:
        """The link of a client's node is reset before the reply to the n-th command that has this word."""
        node = self._clients[client].node
        self._redis.end_with(LastCommand(self._links_of(node), word.encode(), number, replies=False))

    def reset_link_twice(self, name: str, number: int) -> None:
        """The link of a node is reset, and the next one ends with the n-th reply: within the repair, or after it."""
        self.reset_link(name)
        self.end_link_with(name, "", number)

    # ---- Redis ----

    def kill_redis(self, milliseconds: int) -> None:
        """kill -9; start it after a while."""
        self._kill(self._redis, milliseconds)

    def _kill(self, server: RedisServer, milliseconds: int) -> None:
        if server.running:
            server.kill()
            self.times_away.append((server, self._world.now, self._world.now + milliseconds * MILLI))
            self._until(milliseconds, server.start)

    def kill_machine_of_redis(self, milliseconds: int) -> None:
        """Connections to it stay open without a reply; another machine has its address and its data after a while."""
        if self._redis.running:
            self._redis.kill(silently=True)
            self._until(milliseconds, self._redis.start)

    def freeze_redis(self, milliseconds: int) -> None:
        """SIGSTOP, then SIGCONT."""
        self._redis.freeze()
        self.times_away.append((self._redis, self._world.now, self._world.now + milliseconds * MILLI))
        self._until(milliseconds, self._redis.thaw)

    def redis_loses(self, lost: int, milliseconds: int) -> None:
        """It dies without the data of some milliseconds, or its replica lacks them; it is there again after a while."""
        self._redis.keep()
        self._until(lost, partial(self._kill, self._redis, milliseconds))

    def redis_loses_all(self, milliseconds: int) -> None:
        """It dies, and has nothing when it is there again."""
        if self._redis.running:
            self._redis.keep_nothing()
            self.kill_redis(milliseconds)

    def refuse(self, why: str, milliseconds: int) -> None:
        """It refuses calls that write."""
        self._redis.refuse(why)
        self._until(milliseconds, self.accept)

    def accept(self) -> None:
        """It accepts calls that write again."""
        for server in self._servers:
            server.refuse("")

    def at_all_servers(self, kind: str, *arguments: object) -> None:
        """Do a step of Redis at the servers of all clusters."""
        for actions in self._everywhere:
            actions.do(Step(0, kind, arguments))
