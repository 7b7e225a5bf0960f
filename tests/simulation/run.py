"""One run: a world with a cluster, or several side by side, from the start to the findings."""

import gc
import hashlib
import logging
import random
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from redis.utils import get_lib_version

from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq._speedups.cluster.sharded_journal import ShardedJournal
from flockmq.broker.core.data_plane import DataPlane
from flockmq.broker.state_machine import ILLEGAL
from flockmq.loadtest.prove.history import Delivered
from tests.simulation import checker
from tests.simulation.clock import NS, Clock
from tests.simulation.cluster import SimulatedCluster, Stage, host_of
from tests.simulation.network import Network
from tests.simulation.nodes import SimulatedNode
from tests.simulation.plan import LAST, Plan
from tests.simulation.redis_server import RedisServer
from tests.simulation.story import Line, Story
from tests.simulation.world import MILLI, World

START = 5 * NS  # in which the first nodes must be ready
SETTLE = 3 * NS  # after the faults, at least
QUIET = 2 * NS  # without an event, before the run counts as drained
HELD = 5 * NS  # the same while a node may hold keys: it asks about them every 4 s (CLUSTER.md)
PATIENCE = 60 * NS  # for that
COUNTED_FROM = "flockmq.cluster.replication.applied_changes.COUNTED_FROM"
LINGER_SECONDS = "flockmq.cluster.replication.routes.LINGER_SECONDS"
REDIS_PY = get_lib_version()


@dataclass
class Result:
    """The result of a run."""

    plan: Plan
    findings: list[str]
    digest: str  # of the history
    lines: list[Line]
    seconds: float  # of virtual time
    cpu: float  # seconds
    counts: dict[str, int] = field(default_factory=dict)


class LogLines(logging.Handler):
    """The log of the nodes, as lines of the story.

    Args:
        run: that goes on.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        cluster, node = self._run.running
        who = node.host if node is not None else "-"
        if cluster is not None and node is not None:
            cluster.logged(node, record)
        if record.levelno < logging.WARNING and not self._run.story.detailed:
            return
        event = record.getMessage()
        values = " ".join(f"{name}={value}" for name, value in getattr(record, "values", {}).items())
        text = f"log: {record.levelname.lower()} {event}  {values}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._run.story.tell(self._run.world.now, who, text)
        if event == ILLEGAL:
            self._run.found(f"M1 {who}: {text}")
        if event.startswith("internal error") or "damaged" in event:
            self._run.found(f"E0 {who}: {text}")


class Run:
    """A run.

    Args:
        plan: of it.
        detailed: whether the story has packets and commands.
        change: changes the function library: a mutation.
    """

    def __init__(self, plan: Plan, *, detailed: bool = False, change: Callable[[bytes], bytes] = bytes) -> None:
        self.plan = plan
        self.story = Story(detailed)
        self.findings: list[str] = []
        self._change = change
        self.clusters: list[SimulatedCluster] = []

    @property
    def running(self) -> tuple[SimulatedCluster | None, SimulatedNode | None]:
        """The cluster and the node whose loop runs."""
        for cluster in self.clusters:
            for node in cluster.nodes.values():
                if node.starts and node.loop.is_running():
                    return cluster, node
        return None, None

    def found(self, text: str) -> None:
        """Note a finding."""
        if text not in self.findings:
            self.findings.append(text)
            self.story.tell(self.world.now, "FINDING", text)

    def run(self) -> Result:
        """Run it."""
        began = time.process_time()
        chance = random.Random(self.plan.seed ^ 0x5EED)
        state = random.getstate()
        random.seed(self.plan.seed)
        clock = Clock()
        logger = logging.getLogger("flockmq")
        handler = LogLines(self)
        level, propagates = logger.level, logger.propagate
        gc.disable()
        gc.collect()  # the rest of the run before: the collection at its end began while that run was in use
        gc.freeze()  # the objects that are there now are no garbage of this run
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flockmq-simulation-")))
            stack.callback(clock.release)
            for name in ("os.urandom", "random._urandom"):
                stack.enter_context(patch(name, chance.randbytes))
            # Both read a file each time.
            stack.enter_context(patch("redis.utils.get_lib_version", lambda: REDIS_PY))
            stack.enter_context(patch("flockmq.cluster.peers.liveness._started", lambda pid: "1"))
            if self.plan.most_pushes:
                stack.enter_context(patch("flockmq.cluster.primary.ClusterJournal", self._journal))
                stack.enter_context(patch("flockmq.cluster.build.ShardedJournal", self._sharded_journal))
            if self.plan.log_seconds:
                stack.enter_context(patch("flockmq.cluster.primary.REPAIR_LOG_SECONDS", self.plan.log_seconds))
            if self.plan.linger_seconds:
                stack.enter_context(patch(LINGER_SECONDS, self.plan.linger_seconds))
            if self.plan.counted_from:
                stack.enter_context(patch(COUNTED_FROM, self.plan.counted_from))
            self.world = World(self.plan.seed, clock, self.story)
            hosts = sorted(
                {host_of(plan.server + shard) for plan in self.plan.clusters for shard in range(plan.shards)}
            )
            self.servers = {host: RedisServer(self.world, host, self.plan.late_pushes, self._change) for host in hosts}
            stack.callback(self._close)
            try:
                logger.addHandler(handler)
                logger.setLevel(logging.INFO)
                logger.propagate = False
                self._build(folder)
                self._act()
            except Exception:
                self.found(f"E0 the run has failed: {traceback.format_exc()}")
            finally:
                self._end_nodes()
                logger.removeHandler(handler)
                logger.setLevel(level)
                logger.propagate = propagates
                gc.enable()
        random.setstate(state)
        result = Result(
            self.plan,
            self.findings,
            self._digest(),
            self.story.lines,
            self.world.seconds,
            time.process_time() - began,
            {
                "commands": self._commands,
                "published": sum(cluster.actions.published for cluster in self.clusters),
                "delivered": sum(len(cluster.history.of(Delivered)) for cluster in self.clusters),
            },
        )
        vars(self).clear()  # all of the run is garbage now
        gc.collect()
        if DataPlane in map(type, gc.get_objects()):
            result.findings.append("G9 the state of a node is never freed")
        return result

    def _build(self, folder: Path) -> None:
        stage = Stage(self.world, Network(self.world), self.servers, folder, self.found)
        for number, plan in enumerate(self.plan.clusters):
            sets_clock = self.plan.sets_clock(plan.server)
            self.clusters.append(SimulatedCluster(number, plan, stage, sets_clock=sets_clock))

    def _end_nodes(self) -> None:
        for cluster in self.clusters:
            for node in cluster.nodes.values():
                node.close()

    def _close(self) -> None:
        for server in self.servers.values():
            server.close()

    def _journal(self, *arguments: Any) -> ClusterJournal:
        """The journal of a node, whose commits have few entries for queues."""
        journal = ClusterJournal(*arguments)
        journal.limit_pushes(self.plan.most_pushes)
        return journal

    def _sharded_journal(self, headers: list[Any], node: bytes) -> ShardedJournal:
        """Likewise with several shards."""
        journal = ShardedJournal(headers, node)
        for shard in range(len(headers)):
            journal.part(shard).limit_pushes(self.plan.most_pushes)
        return journal

    def _act(self) -> None:
        world, clusters = self.world, self.clusters
        for cluster in clusters:
            cluster.start()
        if not world.run_until(START, lambda: all(cluster.serves for cluster in clusters)):
            self.found("L1 the nodes do not start")
            return
        began = world.now
        for cluster in clusters:
            cluster.begin()
        world.run_until(began + LAST * MILLI)
        for cluster in clusters:
            cluster.heal()
        if not self._drain():
            late = [name for cluster in clusters for name in cluster.late]
            self.found(f"L1 not all is quiet a minute after the faults: {', '.join(late) or 'messages go on'}")
        for cluster in clusters:
            cluster.judge()
        for server in self.servers.values():
            for finding in checker.strange(server.keys, server.watchers):
                self.found(f"{finding} at {server.host}")

    def _drain(self) -> bool:
        """Let all that is on its way arrive, and clients that have gone time out. Returns whether all has ended."""
        world, clusters = self.world, self.clusters
        end = world.now + PATIENCE
        world.run_until(world.now + SETTLE)
        count, since = -1, world.now
        while world.now < end:
            world.run_until(world.now + 100 * MILLI)
            events = sum(len(cluster.history.events) for cluster in clusters)
            if events != count or any(cluster.is_busy for cluster in clusters):
                count, since = events, world.now
            elif world.now - since >= (HELD if any(cluster.may_hold_keys for cluster in clusters) else QUIET):
                return True
        return False

    @property
    def _commands(self) -> int:
        """The number of commands that Redis has executed."""
        return sum(server.executed for server in self.servers.values())

    def _digest(self) -> str:
        text = hashlib.blake2b(digest_size=16)
        for cluster in self.clusters:
            for moment, event in zip(cluster.history.times, cluster.history.events, strict=True):
                text.update(f"{moment} {event!r}\n".encode())
        text.update(f"{self._commands} {self.world.now}".encode())
        return text.hexdigest()
