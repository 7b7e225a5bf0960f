"""Real nodes over a real Redis, used like one broker: a BrokerProcess whose `port` is another node's each time.

That every client sees each earlier step, as a test of one broker expects, holds a little later in a cluster. `settle`
waits for that, and the tests' clients call it between the steps of different clients, so that the same tests mean the
same with one node and with many. With `one_node` all clients are at the same node, the first.
"""

import itertools
import os
import random
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq._speedups.codec.decode import Decoder
from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import Connack, Connect, Packet, Suback, Subscribe, Unsuback, Unsubscribe
from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from tests.harness.broker_process import SETTLERS, STORES, BrokerProcess
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import KEEPS, RedisProcess

KINDS = [*STORES, "cluster"]  # every protocol test runs against each


def new_seed() -> int:
    """A seed; it is printed, and shown if the test fails. FLOCKMQ_TEST_SEED repeats one."""
    seed = int(os.environ.get("FLOCKMQ_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"FLOCKMQ_TEST_SEED={seed}")
    return seed


class ClusterNode(BrokerProcess):
    """One node.

    Args:
        cluster: to which it belongs.
        name: its name.
        proxy: the node reaches Redis through it; None: directly.
        settings: as for BrokerProcess.
        arguments: as for BrokerProcess.
    """

    def __init__(
        self,
        cluster: "ClusterProcess",
        name: str,
        proxy: TcpProxy | None = None,
        settings: Mapping[str, object] | None = None,
        arguments: list[str] | None = None,
    ) -> None:
        directory = cluster.directory / name
        directory.mkdir(exist_ok=True)
        super().__init__(directory, "cluster", settings, arguments)
        self.cluster = cluster
        self.name = name
        self.module = ["flockmq.broker.cli"]  # a module that is run, and its first arguments
        self._proxy = proxy

    @property
    def proxy(self) -> TcpProxy:
        """The proxy between the node and Redis."""
        assert self._proxy is not None, "the cluster was made without proxies"
        return self._proxy

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("flockmq.broker.cli")
        command[at : at + 1] = self.module
        return command

    def died(self, wait: float = 0) -> bool:
        """Whether the node has killed itself, by now or within `wait` seconds."""
        if self.process is None:
            return True
        try:
            self.process.wait(wait)
        except subprocess.TimeoutExpired:
            return False
        status = self.wait()
        assert status == -signal.SIGKILL, f"exit status {status}\n{self.log_text()}"
        return True

    def begin_anew(self) -> None:
        """Stop the process until another node has declared it dead; return when it has joined again, by a new id."""
        node_id = [line["node"] for line in self.log if line["event"] == "joined the cluster"][-1]
        self.signal(signal.SIGSTOP)
        next(node for node in self.cluster.nodes if node is not self).wait_for_log("node left", node=node_id)
        self.signal(signal.SIGCONT)
        self.wait_for_log("is ready again")

    def store_arguments(self) -> list[str]:
        redis = " ".join([self.cluster.url(self._proxy)] * self.cluster.shards)
        return ["--redis", redis, "--node-name", self.name]

    def _said(self, line: dict[str, Any]) -> None:
        super()._said(line)
        self.cluster.said({**line, "node": self.name})


class GivenRedis(NamedTuple):
    """A Redis that another part owns."""

    process: RedisProcess
    url: str = ""  # by which nodes find it; empty: the port of the process


class ClusterProcess:
    """Some nodes and their Redis.

    Args:
        directory: for the files of all.
        settings: of all nodes, as for BrokerProcess.
        nodes: their names.
        redis: the persistence of the cluster's Redis, a key of KEEPS; or a Redis that another part owns.
        proxies: whether each node reaches Redis through its proxy.
        one_node: whether `port` is always the first node's.
        orderly: whether the tests' clients let the cluster settle; not where a test looks at the time before that.
        arguments: more of each node's command line.
    """

    store = "cluster"

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        *,
        nodes: Iterable[str] = ("a", "b", "c"),
        redis: str | RedisProcess | GivenRedis = "everysec",
        proxies: bool = False,
        one_node: bool = False,
        orderly: bool = True,
        arguments: list[str] | None = None,
    ) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.arguments = list(arguments or [])
        self.one_node = one_node
        self._orderly = orderly and not one_node
        self.rng = random.Random(new_seed())
        self.log: list[dict[str, Any]] = []  # of all nodes, in the order it was read
        self._news = threading.Condition()
        self._owns_redis = isinstance(redis, str)
        if isinstance(redis, str):
            place = directory / "redis"
            place.mkdir(exist_ok=True)
            redis = RedisProcess(place, KEEPS[redis])
        self.redis, self.redis_url = redis if isinstance(redis, GivenRedis) else GivenRedis(redis)
        self.shards = int(os.environ.get("FLOCKMQ_TEST_SHARDS", "1"))
        self._proxies = proxies
        self.nodes: list[ClusterNode] = []
        for name in nodes:
            self.add(name)
        self._lock = threading.RLock()
        self._barriers: dict[int, _Barrier] = {}  # by port
        self._last_sender = 0

    def add(self, name: str, **settings: object) -> ClusterNode:
        """A node more, which is not started; its settings go before the common ones."""
        proxy = TcpProxy(lambda: self.redis.port) if self._proxies else None
        node = ClusterNode(self, name, proxy, {**self.settings, **settings}, self.arguments)
        self.nodes.append(node)
        return node

    def __getitem__(self, name: str) -> ClusterNode:
        return next(node for node in self.nodes if node.name == name)

    def __enter__(self) -> "ClusterProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self, proxy: TcpProxy | None = None) -> str:
        """Where a node finds Redis."""
        return self.redis_url or f"redis://127.0.0.1:{proxy.port if proxy else self.redis.port}/0"

    @property
    def prefix(self) -> str:
        """Of the keys, with the default settings."""
        return "{mq}:" if "+cluster:" in self.redis_url else "mq:"

    @property
    def prefixes(self) -> list[str]:
        """Of the keys of each shard; all shards have the same Redis."""
        return [self.prefix, *(f"mq:p{shard}:" for shard in range(1, self.shards))]

    def prefix_of(self, name: str) -> str:
        """Of the keys of a client, a group or a node."""
        return self.prefixes[shard_of(name.encode(), self.shards)]

    # ---- life ----

    def start(self) -> "ClusterProcess":
        """Start all nodes that don't run, at once; the Redis of the cluster's own too."""
        if self._owns_redis and self.redis.process is None:
            self.redis.start()
        starting = [node for node in self.nodes if node.process is None]
        for node in starting:
            node.spawn()
        for node in starting:
            node.wait_until_ready()
            if self._orderly:
                SETTLERS[node.port] = self
        return self

    @property
    def port(self) -> int:
        """The port of a node, another one each time."""
        running = [node for node in self.nodes if node.running]
        return self.nodes[0].port if self.one_node else self.rng.choice(running or self.nodes).port

    @property
    def pid(self) -> int:
        """The process id of the only node."""
        assert self.one_node, "there are several"
        return self.nodes[0].pid

    @property
    def running(self) -> bool:
        """Whether all nodes run."""
        return all(node.running for node in self.nodes)

    def signal(self, signum: int) -> None:
        """Send a signal to all nodes that have not ended."""
        for node in self.nodes:
            if node.running:
                with suppress(ProcessLookupError):  # it may be about to end
                    node.signal(signum)

    def stop(self) -> int:
        """End all nodes with SIGTERM; returns 0, or an exit status that isn't. Redis goes on."""
        self._forget_barriers()
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of all nodes; returns 0, or an exit status that isn't."""
        return next(filter(None, [node.wait() for node in self.nodes if node.process is not None]), 0)

    def kill(self) -> None:
        """kill -9 to all nodes."""
        self._forget_barriers()
        self.signal(signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        """Stop all nodes cleanly and start them again."""
        assert self.stop() == 0
        self.start()

    def close(self) -> None:
        """End everything."""
        self.signal(signal.SIGCONT)
        try:
            if self.redis.process is None:  # a node would wait for it at its end
                self.kill()
            self.stop()
        finally:
            for node in self.nodes:
                SETTLERS.pop(node.port, None)
                if node._proxy:
                    node._proxy.close()
            if self._owns_redis:
                self.redis.kill()

    # ---- their logs ----

    def said(self, line: dict[str, Any]) -> None:
        """A node has logged a line."""
        with self._news:
            self.log.append(line)
            self._news.notify_all()

    def wait_for_log(self, event: str, since: int = 0, **values: object) -> dict[str, Any]:
        """As BrokerProcess.wait_for_log, of any node; `node` is the name of one."""
        end = time.monotonic() + DEADLINE
        seen = since
        with self._news:
            while True:
                for line in self.log[seen:]:
                    if re.search(event, line["event"]) and all(line.get(name) == values[name] for name in values):
                        return line
                seen = len(self.log)
                left = end - time.monotonic()
                assert left > 0, f"no line {event!r} {values} in the log:\n{self.log_text()}"
                self._news.wait(min(left, 0.5))

    def log_text(self) -> str:
        """The logs, to be shown when a test fails."""
        return "\n".join(f"--- {node.name} ---\n{node.log_text()}" for node in self.nodes)

    def faults(self) -> list[dict[str, Any]]:
        """Log lines about a fault of a node itself."""
        return [line for node in self.nodes for line in node.faults()]

    def check(self) -> None:
        """Fail if a node has logged an internal fault."""
        for node in self.nodes:
            node.check()

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Check and end the cluster afterwards; a failure prints the log of its nodes."""
        try:
            yield
            self.check()
        except BaseException:
            print(self.log_text())
            raise
        finally:
            self.close()

    # ---- what they use ----

    def rss(self) -> int:
        """Bytes of memory that are resident, of all nodes."""
        return sum(node.rss() for node in self.nodes)

    def cpu(self) -> float:
        """Seconds of CPU time so far, of all nodes."""
        return sum(node.cpu() for node in self.nodes)

    def open_files(self) -> int:
        """How many file descriptors the nodes have that clients are at."""
        return sum(node.open_files() for node in (self.nodes[:1] if self.one_node else self.nodes))

    # ---- order ----

    def settle(self, *names: str) -> None:
        """Return when all nodes, or those named, have acted on all that was sent to any of them before.

        A change that a node makes goes through Redis after all that it was asked before; when all nodes have made
        one, and then another, each has seen what the others did before the first.
        """
        with self._lock:
            nodes = [node for node in self.nodes if node.running and (not names or node.name in names)]
            try:
                self._settle(nodes)
            except ConnectionError:  # a node with a short keep alive has just closed one of the connections
                self._forget_barriers()
                self._settle(nodes)

    def _settle(self, nodes: list[ClusterNode]) -> None:
        barriers = []
        for node in nodes:
            barrier = self._barriers.get(node.port)
            if barrier is None or barrier.pid != node.pid or barrier.ended:
                barrier = self._barriers[node.port] = _Barrier(node)
            barriers.append(barrier)
        for change in (Subscribe(1, [("settle", 0)]), Unsubscribe(1, ["settle"])):
            for barrier in barriers:
                barrier.send(change)
            for barrier in barriers:
                barrier.receive(Suback, Unsuback)

    def take_turns(self, client: object) -> None:
        """Settle if another client was the last to send."""
        with self._lock:
            if self._last_sender != id(client):
                self._last_sender = id(client)
                self.settle()

    def _forget_barriers(self) -> None:
        with self._lock:
            for barrier in self._barriers.values():
                barrier.socket.close()
            self._barriers.clear()
            self._last_sender = 0


class _Barrier:
    """A connection to a node that does nothing but make changes."""

    numbers = itertools.count()

    def __init__(self, node: ClusterNode) -> None:
        self.pid = node.pid
        self.name = node.name
        self.decoder = Decoder(4)
        self.packets: list[Packet] = []
        self.socket = socket.create_connection(("127.0.0.1", node.port), DEADLINE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(Connect(client_id=f"settle-{os.getpid()}-{next(self.numbers)}", keep_alive=0, protocol_level=4))
        self.receive(Connack)

    @property
    def ended(self) -> bool:
        """Whether the node has closed the connection: it rejoined."""
        return bool(select.select([self.socket], [], [], 0)[0])  # else nothing comes that was not asked for

    def send(self, packet: Packet) -> None:
        self.socket.sendall(encode(packet, 4))

    def receive(self, *kinds: type) -> None:
        while not self.packets:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError(f"node {self.name} has closed the connection")
            self.packets += self.decoder.feed(data)
        packet = self.packets.pop(0)
        assert isinstance(packet, kinds), packet


Broker = BrokerProcess | ClusterProcess


def make_broker(
    directory: Path, kind: str, settings: Mapping[str, object] | None = None, *, one_node: bool = False, **more: Any
) -> Broker:
    """A broker of a kind out of KINDS, not started: a node alone, or a cluster.

    Args:
        directory: for its files.
        kind: a key of STORES, or "cluster".
        settings: as for BrokerProcess.
        one_node: of a cluster, that all clients are at one node.
        more: for BrokerProcess or ClusterProcess.
    """
    if kind == "cluster":
        return ClusterProcess(directory, settings, one_node=one_node, **more)
    return BrokerProcess(directory, kind, settings, **more)
