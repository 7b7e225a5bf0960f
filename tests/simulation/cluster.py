"""One run: a cluster, its clients and a plan, from the start to the findings."""

import gc
import hashlib
import json
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
from flockmq.broker.core.data_plane import DataPlane
from flockmq.broker.state_machine import ILLEGAL
from flockmq.cluster.life import ClusterLife
from flockmq.cluster.membership.data_loss import STARTED_TWICE
from flockmq.cluster.redis.link import DECLARED_DEAD
from flockmq.loadtest.prove.client import NEVER
from flockmq.loadtest.prove.history import Delivered
from tests.simulation import checker, timed
from tests.simulation.clients import Habits, SimulatedBroker, SimulatedClient, TimedHistory
from tests.simulation.clock import NS, Clock
from tests.simulation.faults import Actions
from tests.simulation.limits import Drops, excused
from tests.simulation.losses import Excuses, Loss, payloads
from tests.simulation.network import Network
from tests.simulation.nodes import ClientSocket, SimulatedNode, Surroundings
from tests.simulation.plan import LAST, NODES, ClientPlan, Plan
from tests.simulation.redis_server import RedisServer
from tests.simulation.replicated import differences
from tests.simulation.story import Line, Story
from tests.simulation.world import MILLI, World

START = 5 * NS  # in which the first nodes must be ready
SETTLE = 3 * NS  # after the faults, at least
QUIET = 2 * NS  # without an event, before the run counts as drained
HELD = 5 * NS  # the same while a node may hold keys: it asks about them every 4 s (CLUSTER.md)
PATIENCE = 60 * NS  # for that
PROMPT = NS  # from CONNECT to CONNACK, take-over included, as long as nothing is broken
GROUP = "$share/team/t/#"
LARGEST = 1 << 20  # bytes of a packet: of workers of level 5, whose node gives them messages of the group (groups.md)
FILTERS: dict[str, tuple[str, ...]] = {
    "subscriber": ("t/#", "will", "d/#"),
    "latecomer": ("t/#",),
    "worker": (GROUP,),
    "helper": (GROUP,),
    "visitor": ("t/#",),
    "guest": ("t/#",),
}
DUE = (b"mq:later", b"mq:delayed", b"mq:ends")  # keys with all that is still to come
FENCED = "fenced: "  # the beginning of a line in the log
REJOINS = ("declared", STARTED_TWICE)  # parts of reasons for which a node rejoins although Redis has lost nothing
COUNTED_FROM = "flockmq.cluster.replication.applied_changes.COUNTED_FROM"
LINGER_SECONDS = "flockmq.cluster.replication.routes.LINGER_SECONDS"
REDIS_PY = get_lib_version()
REJOINED = "the node is ready again"  # the end of a line in the log


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
        event, who = record.getMessage(), self._run.running
        node = self._run.nodes.get(who)
        if node is not None:
            node.troubles += record.levelno >= logging.ERROR
            if event.endswith(REJOINED):
                node.is_away = not node.has_link  # its new link may have ended before it is ready
            elif event.startswith(("Redis is away", "Redis is back")):
                node.is_away = event.startswith("Redis is away")
            if event.startswith("Redis is back") or event.endswith(REJOINED):
                node.backs.append(self._run.world.now)
            reason = str(getattr(record, "values", {}).get("reason"))
            if event.startswith(FENCED):
                node.leaves()
                if not self._run.losses and not any(each in reason for each in REJOINS):
                    self._run.found(f"L3 {who} rejoins, and Redis has lost nothing: {reason}")
            if DECLARED_DEAD in reason:
                node.ends.append(self._run.world.now)
        if record.levelno < logging.WARNING and not self._run.story.detailed:
            return
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
        self.nodes: dict[str, SimulatedNode] = {}
        self.losses: list[Loss] = []

    @property
    def running(self) -> str:
        """The node whose loop runs."""
        return next((node.name for node in self.nodes.values() if node.starts and node.loop.is_running()), "-")

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
            if self.plan.log_seconds:
                stack.enter_context(patch("flockmq.cluster.primary.REPAIR_LOG_SECONDS", self.plan.log_seconds))
            if self.plan.linger_seconds:
                stack.enter_context(patch(LINGER_SECONDS, self.plan.linger_seconds))
            if self.plan.counted_from:
                stack.enter_context(patch(COUNTED_FROM, self.plan.counted_from))
            self.world = World(self.plan.seed, clock, self.story)
            self.redis = RedisServer(self.world, self._change, self._lost)
            stack.callback(self.redis.close)
            try:
                logger.addHandler(handler)
                logger.setLevel(logging.INFO)
                logger.propagate = False
                self._build(folder)
                self._act()
            except Exception:
                self.found(f"E0 the run has failed: {traceback.format_exc()}")
            finally:
                for node in self.nodes.values():
                    node.close()
                logger.removeHandler(handler)
                logger.setLevel(level)
                logger.propagate = propagates
                gc.enable()
        random.setstate(state)
        seconds = self.world.seconds
        result = Result(
            self.plan,
            self.findings,
            self._digest(),
            self.story.lines,
            seconds,
            time.process_time() - began,
            {
                "commands": self.redis.executed,
                "published": self.actions.published,
                "delivered": len(self.history.of(Delivered)),
            },
        )
        vars(self).clear()  # all of the run is garbage now
        gc.collect()
        if DataPlane in map(type, gc.get_objects()):
            result.findings.append("G9 the state of a node is never freed")
        return result

    def _build(self, folder: Path) -> None:
        world = self.world
        self.history = TimedHistory(world)
        self.network = Network(world)
        clean = {client.name for client in self.plan.clients if client.clean}
        limits = self.plan.limits
        most = limits.tenant_bytes or 1 << 30
        tenants = json.dumps([{"name": self.plan.tenant, "max_queued_bytes": most}]) if self.plan.tenant else ""
        own = {
            "cluster.replicas": self.plan.replicas,
            "shared.window": self.plan.window,
            "tenants": tenants,
        }
        if self.plan.is_ordered:
            own["shared.groups"] = json.dumps([{"name": GROUP, "strategy": "publisher"}])
        settings = {key: str(value) for key, value in own.items() if value} | limits.settings()
        around = Surroundings(
            world, self.network, self.redis, folder, clean, settings, on_finding=self.found, sockets_of=self._sockets_of
        )
        self.nodes = {name: SimulatedNode(name, around) for name in NODES}
        self.redis.on_claimed = self._claimed
        self._drops = Drops(limits, self._prefix, self.found)
        self.redis.on_calling = self._drops.calling
        self.redis.on_called = self._drops.called
        self._ports = {name: node.accept for name, node in self.nodes.items()}
        self._broker = SimulatedBroker(
            world, self.network, self._ports, self._troubles, self._forgets, self._is_lost, self._waited
        )
        self.clients = {client.name: self._make(client) for client in self.plan.clients}
        self.actions = Actions(world, self.network, self.redis, self.nodes, self.clients)

    def _claimed(self, node: bytes, client_id: bytes) -> None:
        name, _, _ = node.decode().partition("-")
        client = client_id.decode().removeprefix(self._prefix)
        self.nodes[name].claimed(client)

    def _sockets_of(self, client: str) -> list[ClientSocket]:
        return [each for node in self.nodes.values() for each in node.sockets_of(client)]

    @property
    def _prefix(self) -> str:
        """Before the names of clients in Redis."""
        return f"$tenant/{self.plan.tenant}/" if self.plan.tenant else ""

    def _journal(self, *arguments: Any) -> ClusterJournal:
        """The journal of a node, whose commits have few entries for queues."""
        journal = ClusterJournal(*arguments)
        journal.limit_pushes(self.plan.most_pushes)
        return journal

    def _troubles(self, name: str) -> int:
        return self.nodes[name].troubles

    def _lost(self, since: int, keys: dict[bytes, Any]) -> None:
        self.losses.append(Loss(since, self.world.now, payloads(keys)))
        for node in self.nodes.values():
            node.lose_claims(since)

    def _waited(self, client: str, since: int) -> None:
        if self.world.now - since > PROMPT and since + PROMPT < self.actions.first_fault:
            self.found(f"L2 {client} waited for CONNACK for {(self.world.now - since) / NS:.1f} s, without a fault")

    @property
    def _early(self) -> int:
        """Nanoseconds by which something that is due may be early."""
        return timed.EARLY_AFTER_STEP if self._steps_clock else timed.EARLY

    @property
    def _steps_clock(self) -> bool:
        """Whether the plan has a step of Redis' wall clock."""
        return any(step.kind == "step_clock" and "redis" in step.arguments for step in self.plan.steps)

    @property
    def _expired(self) -> set[str]:
        """Clients that never came back, and whose sessions have expired."""
        return {name for name, client in self.clients.items() if client.has_vanished and client.expiry < NEVER}

    def _forgets(self) -> bool:
        return bool(self.losses) and not self.plan.replicas

    def _is_lost(self, since: int, until: int) -> bool:
        """Whether what Redis executed between two times may be lost."""
        return self._forgets() and any(loss.since < until and since < loss.until for loss in self.losses)

    def _make(self, client: ClientPlan) -> SimulatedClient:
        habits = Habits(
            seed=self.world.rng.getrandbits(32),
            filters=tuple((name, client.qos if "t/" in name else 2) for name in FILTERS.get(client.role, ())),
            wills=client.role in ("mortal", "guest"),
            delay=client.delay,
            early=self._early,
            gives_up=not client.is_patient,
            largest=LARGEST if client.role == "worker" else 0,
        )
        return SimulatedClient(
            client.name,
            self._broker,
            self.history,
            habits,
            expiry=client.expiry,
            subscribes_again=client.role == "guest",
            level=client.level,
            clean=client.clean,
        )

    def _act(self) -> None:
        world = self.world
        for node in self.nodes.values():
            node.start()
        if not world.run_until(START, lambda: all(node.serves for node in self.nodes.values())):
            self.found("L1 the nodes do not start")
            return
        began = world.now
        for client in self.plan.clients:
            later = (client.late + world.rng.randrange(300)) * MILLI
            world.after(later, self.clients[client.name].come, client.node)
        for step in self.plan.steps:
            world.at(began + step.time * MILLI, self.actions.do, step)
        world.run_until(began + LAST * MILLI)
        self.actions.heal()
        self._healed = world.now
        self._judge_bytes()  # before all queues are empty
        if not self._drain():
            late = [name for name, client in self.clients.items() if not client.is_idle]
            self.found(f"L1 not all is quiet a minute after the faults: {', '.join(late) or 'messages go on'}")
        for name, node in self.nodes.items():
            if node.serves and node.is_away and not node.stops:
                self.found(f"L1 {name} has no link to Redis long after the faults")
        for name in sorted(self._expired):
            self.clients[name].forget()
        for finding in differences(self._lives(), self.redis.keys, self.plan.is_ordered):
            self.found(finding)
        retained = self._read_retained()
        roles = {role: {client.name for client in self.plan.clients if client.role == role} for role in FILTERS}
        ends = [end for node in self.nodes.values() for end in node.ends]
        deaths, backs = self.redis.deaths, [node.backs for node in self.nodes.values()]
        excuses = Excuses(self.history, self.history.times, self.losses, self.plan.replicas, ends, deaths, backs)
        judged = [roles[role] for role in ("visitor", "worker", "helper")]
        found = checker.judge(excuses, *judged, roles["guest"] | roles["latecomer"], retained)
        # A second end of Redis may fence all nodes. Then none lives, and deadlines follow the wall clock (CLUSTER.md).
        if not self.losses and not (self._steps_clock and len(deaths) > 1):
            found += self._late_or_early(roles["subscriber"])
        listeners, members = sorted(roles["subscriber"]), sorted(roles["worker"] | roles["helper"])
        dropped = sum(node.dropped for node in self.nodes.values())
        none = excused(found, self.history, self.plan.limits, self._drops, dropped, listeners, members)
        for finding in found:
            if finding not in none:
                self.found(finding)
        if not self.plan.is_ordered:  # else a message may wait behind one that is at a member
            for finding in checker.late(self.history, roles["worker"] | roles["helper"], self.actions.first_fault):
                self.found(finding)
        elif not self.losses:
            for finding in checker.disordered_in_group(self.history, roles["worker"] | roles["helper"]):
                self.found(finding)
        for finding in checker.left_over(self.redis.keys, {self._prefix + name for name in self._expired}):
            # Redis may have got back a message whose publisher has had PUBCOMP.
            if not (self.losses and finding.startswith("S1 mq:in:")):
                self.found(finding)
        # A node may have acknowledged a message that Redis lost, and gave its number to another: a push corrects that.
        if not self.losses:
            for finding in checker.miscounted(self.redis.keys):
                self.found(finding)
        for finding in checker.misplaced(self.redis.keys):
            self.found(finding)
        self._judge_bytes()

    def _lives(self) -> dict[str, ClusterLife]:
        """The parts of the nodes that serve clients."""
        nodes = {name: node.node for name, node in self.nodes.items() if node.serves and not node.is_away}
        found = {name: node.coordinator.life for name, node in nodes.items() if node is not None}
        return {name: each for name, each in found.items() if isinstance(each, ClusterLife)}

    def _judge_bytes(self) -> None:
        self._drops.judge(self.redis.keys)
        if finding := checker.miscounted_for(self._prefix.encode(), self.redis.keys):
            self.found(finding)

    def _late_or_early(self, listeners: set[str]) -> list[str]:
        timeline = [*zip(self.history.times, self.history.events, strict=True)]
        lives = [life for client in self.clients.values() for life in client.lives]
        return [*timed.judge(timeline, lives, listeners, self.actions.first_fault, self._healed, self._early)]

    def _drain(self) -> bool:
        """Let all that is on its way arrive, and clients that have gone time out. Returns whether all has ended."""
        world = self.world
        end = world.now + PATIENCE
        world.run_until(world.now + SETTLE)
        count, since = -1, world.now
        while world.now < end:
            world.run_until(world.now + 100 * MILLI)
            if (
                len(self.history.events) != count
                or not all(client.is_idle for client in self.clients.values())
                or any(key in self.redis.keys for key in DUE)
                or any(self._sockets_of(client.client_id) for client in self.clients.values() if client.has_vanished)
            ):
                count, since = len(self.history.events), world.now
            elif world.now - since >= (HELD if self._may_hold_keys() else QUIET):
                return True
        return False

    def _may_hold_keys(self) -> bool:
        """Whether a node has messages of a group with an order: it may wait for the answer to its next question."""
        return self.plan.is_ordered and any(key.startswith(b"mq:gl:") for key in self.redis.keys)

    def _read_retained(self) -> dict[str, dict[str, bytes]]:
        """The retained messages that a new subscriber finds at each node."""
        world = self.world
        history = TimedHistory(world)
        readers = {
            name: SimulatedClient(
                f"reader of {name}",
                SimulatedBroker(world, self.network, {name: self._ports[name]}, self._troubles),
                history,
                Habits(seed=1, filters=(("kept/#", 1),)),
                clean=True,
            )
            for name in self.nodes
        }
        for reader in readers.values():
            reader.come()
        world.run_until(world.now + 10 * NS, lambda: all(r.is_idle and r.granted for r in readers.values()))
        world.run_until(world.now + NS)
        found: dict[str, dict[str, bytes]] = {name: {} for name in self.nodes}
        for event in history.of(Delivered):
            found[event.client.removeprefix("reader of ")][event.topic] = event.payload
        return found

    def _digest(self) -> str:
        text = hashlib.blake2b(digest_size=16)
        for moment, event in zip(self.history.times, self.history.events, strict=True):
            text.update(f"{moment} {event!r}\n".encode())
        text.update(f"{self.redis.executed} {self.world.now}".encode())
        return text.hexdigest()
