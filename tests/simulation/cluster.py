"""A cluster of a run: its nodes at a Redis, its clients and its plan, and the rules that judge them."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq.cluster.life import ClusterLife
from flockmq.cluster.membership.data_loss import STARTED_TWICE
from flockmq.cluster.redis.link import DECLARED_DEAD
from flockmq.loadtest.prove.client import NEVER
from flockmq.loadtest.prove.history import Delivered
from tests.simulation import alone, checker, timed
from tests.simulation.clients import Habits, SimulatedBroker, SimulatedClient, SimulatedTransactor, TimedHistory
from tests.simulation.clock import NS
from tests.simulation.cluster_keys import PREFIX, ClusterKeys, prefix_of
from tests.simulation.faults import Actions
from tests.simulation.limits import NO_LIMITS, Drops, excused
from tests.simulation.losses import Excuses, Loss, payloads
from tests.simulation.network import Network
from tests.simulation.nodes import ClientSocket, SimulatedNode, Surroundings
from tests.simulation.plan import NODES, ClientPlan, Plan
from tests.simulation.redis_server import RedisServer
from tests.simulation.redis_types import Reply
from tests.simulation.replicated import differences
from tests.simulation.world import MILLI, World

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
    alone.ROLE: ("by/{}",),
}
DUE = (b"mq:later", b"mq:delayed", b"mq:ends")  # keys with all that is still to come
ORPHANS = b"mq:once:orphans"  # a loss may bring back records that nobody ends, and need them
FENCED = "fenced: "  # the beginning of a line in the log
REJOINS = ("declared", STARTED_TWICE)  # parts of reasons for which a node rejoins although Redis has lost nothing
REJOINED = "the node is ready again"  # the end of a line in the log
NUMBERS = 1_000_000  # of messages and wills: each cluster has others


@dataclass
class Stage:
    """All that the clusters of a run share."""

    world: World
    network: Network
    servers: dict[str, RedisServer]  # by host
    folder: Path  # for sockets
    on_finding: Callable[[str], object]  # called with a sentence
    actions: list[Actions] = field(default_factory=list)  # of all clusters


def host_of(server: int) -> str:
    """The host of a Redis, from its number."""
    return f"redis{server}"


class SimulatedCluster:
    """One cluster; `Watcher` of its Redis.

    Args:
        number: of the cluster in the run, from 0.
        plan: of it.
        stage: of the run.
        sets_clock: whether a step sets the wall clock of its Redis.
    """

    def __init__(self, number: int, plan: Plan, stage: Stage, *, sets_clock: bool) -> None:
        world, network = stage.world, stage.network
        self.plan = plan
        self.servers = [stage.servers[host_of(plan.server + shard)] for shard in range(plan.shards)]
        self.redis = self.servers[0]
        self._world = world
        self._network = network
        self._sets_clock = sets_clock
        self._on_finding = stage.on_finding
        self._label = f"p{number}." if number else ""
        self._prefix = prefix_of(number)
        self._prefixes = [self._prefix, *map(prefix_of, range(1, plan.shards))]  # of the shards
        self._numbers = range(number * NUMBERS, (number + 1) * NUMBERS)
        for server, prefix in zip(self.servers, self._prefixes, strict=True):
            server.watchers[prefix] = self
        self._losses: list[Loss] = []
        self._called: Mapping[bytes, Any] = {}  # the keys of the shard whose function is executed
        self.history = TimedHistory(world, self._label)
        around = Surroundings(
            world,
            network,
            stage.servers,
            lambda: self.keys,
            self._label,
            stage.folder,
            {client.name for client in plan.clients if client.clean},
            self._settings(),
            on_finding=self.found,
            sockets_of=self._sockets_of,
        )
        self.nodes = {name: SimulatedNode(name, around) for name in NODES}
        self._drops = Drops(plan.limits, self._tenant, self.found)
        self._ports = {name: node.accept for name, node in self.nodes.items()}
        self._broker = SimulatedBroker(
            world,
            network,
            self._ports,
            self._troubles,
            self._forgets,
            self._is_lost,
            self._waited,
            label=self._label,
            first=self._numbers.start,
        )
        self.clients = {client.name: self._make(client) for client in plan.clients}
        self.actions = Actions(
            world,
            network,
            self.servers,
            self.nodes,
            self.clients,
            label=self._label,
            first=self._numbers.start,
            everywhere=stage.actions,
        )
        stage.actions.append(self.actions)

    def _settings(self) -> dict[str, str]:
        """The configuration of the nodes."""
        plan, limits = self.plan, self.plan.limits
        most = limits.tenant_bytes or 1 << 30
        own = {
            "cluster.redis": " ".join(f"redis://{server.host}:6379" for server in self.servers),
            "cluster.prefix": self._prefix.decode(),
            "cluster.replicas": plan.replicas,
            "shared.window": plan.window,
            "tenants": json.dumps([{"name": plan.tenant, "max_queued_bytes": most}]) if plan.tenant else "",
        }
        if plan.is_ordered:
            own["shared.groups"] = json.dumps([{"name": GROUP, "strategy": "publisher"}])
        return {key: str(value) for key, value in own.items() if value} | limits.settings()

    def _make(self, client: ClientPlan) -> SimulatedClient:
        names = FILTERS.get(client.role, ())
        if client.role == "visitor" and len(self.servers) > 1:  # a filter, and what is retained, may be in two shards
            names += ("kept/#",)
        habits = Habits(
            seed=self._world.rng.getrandbits(32),
            filters=tuple((name.format(client.name), client.qos if "t/" in name else 2) for name in names),
            wills=client.role in ("mortal", "guest"),
            delay=client.delay,
            early=self._early,
            gives_up=not client.is_patient,
            largest=LARGEST if client.role == "worker" else 0,
        )
        kind = SimulatedTransactor if client.role == "transactor" else SimulatedClient
        return kind(
            client.name,
            self._broker,
            self.history,
            habits,
            expiry=client.expiry,
            subscribes_again=client.role == "guest",
            level=client.level,
            clean=client.clean,
        )

    def found(self, text: str) -> None:
        """Note a finding."""
        self._on_finding(f"{text}, in cluster {self._label[:-1]}" if self._label else text)

    @property
    def keys(self) -> Mapping[bytes, Any]:
        """The keys of the cluster; their prefix is the usual one."""
        return self._own(self.redis.keys)

    @property
    def keys_of_shards(self) -> list[Mapping[bytes, Any]]:
        """The keys of each shard; their prefix is the usual one."""
        if len(self.servers) == 1:
            return [self.keys]
        pairs = zip(self.servers, self._prefixes, strict=True)
        return [ClusterKeys(server.keys, prefix) for server, prefix in pairs]

    def _own(self, keys: dict[bytes, Any]) -> Mapping[bytes, Any]:
        is_alone = self._prefix == PREFIX and len(self.redis.watchers) == 1
        return keys if is_alone else ClusterKeys(keys, self._prefix)

    @property
    def _tenant(self) -> str:
        """Before the names of clients in Redis."""
        return f"$tenant/{self.plan.tenant}/" if self.plan.tenant else ""

    # ---- of its Redis ----

    def claimed(self, node: bytes, client_id: bytes) -> None:
        name, _, _ = node.decode().removeprefix(self._label).partition("-")
        self.nodes[name].claimed(client_id.decode().removeprefix(self._tenant))

    def calling(self, function: bytes, arguments: list[bytes]) -> None:
        self._called = self.keys_of_shards[self._prefixes.index(arguments[0])]
        self._drops.calling(function, arguments, self._called)

    def called(self, function: bytes, reply: Reply) -> None:
        self._drops.called(function, reply, self._called)

    def lost(self, since: int, keys: dict[bytes, Any]) -> None:
        own = next((each for each in self._prefixes[1:] if any(key.startswith(each) for key in keys)), self._prefix)
        kept = payloads(self._own(keys) if own == self._prefix else ClusterKeys(keys, own))
        for prefix, others in zip(self._prefixes, self.keys_of_shards, strict=True):
            if prefix != own:  # the record of a publication that this shard has forgotten
                kept |= payloads(others)
        self._losses.append(Loss(since, self._world.now, kept))
        for node in self.nodes.values():
            node.lose_claims(since)

    # ---- of its clients and nodes ----

    def _sockets_of(self, client: str) -> list[ClientSocket]:
        return [each for node in self.nodes.values() for each in node.sockets_of(client)]

    def _troubles(self, name: str) -> int:
        return self.nodes[name].troubles

    def _waited(self, client: str, since: int) -> None:
        now = self._world.now
        if now - since > PROMPT and since + PROMPT < self.redis.first_fault:
            self.found(f"L2 {client} waited for CONNACK for {(now - since) / NS:.1f} s, without a fault")

    def logged(self, node: SimulatedNode, record: logging.LogRecord) -> None:
        """A node has logged something."""
        event, now = record.getMessage(), self._world.now
        values = getattr(record, "values", {})
        node.troubles += record.levelno >= logging.ERROR
        if event.endswith(REJOINED):
            node.away_from = set() if node.has_link else {""}  # its new link may have ended before it is ready
        elif event.startswith(("Redis is away", "Redis is back")):
            node.notice(str(values.get("redis")), is_away=event.startswith("Redis is away"))
        if event.startswith("Redis is back") or event.endswith(REJOINED):
            node.backs.append(now)
        reason = str(values.get("reason"))
        if event.startswith(FENCED):
            node.leaves()
            if not self._losses and not any(each in reason for each in REJOINS):
                self.found(f"L3 {node.name} rejoins, and Redis has lost nothing: {reason}")
        if DECLARED_DEAD in reason:
            node.ends.append(now)

    @property
    def _early(self) -> int:
        """Nanoseconds by which something that is due may be early."""
        return timed.EARLY_AFTER_STEP if self._sets_clock else timed.EARLY

    @property
    def _expired(self) -> set[str]:
        """Clients that never came back, and whose sessions have expired."""
        return {name for name, client in self.clients.items() if client.has_vanished and client.expiry < NEVER}

    def _forgets(self) -> bool:
        return bool(self._losses) and not self.plan.replicas

    def _is_lost(self, since: int, until: int) -> bool:
        """Whether what Redis executed between two times may be lost."""
        return self._forgets() and any(loss.since < until and since < loss.until for loss in self._losses)

    # ---- the run ----

    def start(self) -> None:
        """Start the nodes."""
        for node in self.nodes.values():
            node.start()

    @property
    def serves(self) -> bool:
        """Whether clients can connect to all nodes."""
        return all(node.serves for node in self.nodes.values())

    def begin(self) -> None:
        """The clients come, and the steps of the plan are due from now on."""
        world = self._world
        for client in self.plan.clients:
            later = (client.late + world.rng.randrange(300)) * MILLI
            world.after(later, self.clients[client.name].come, client.node)
        for step in self.plan.steps:
            world.after(step.time * MILLI, self.actions.do, step)

    def heal(self) -> None:
        """End all faults."""
        self.actions.heal()
        self._healed = self._world.now
        self._judge_bytes()  # before all queues are empty

    @property
    def late(self) -> list[str]:
        """Clients for which something is still to come."""
        return [name for name, client in self.clients.items() if not client.is_idle]

    @property
    def is_busy(self) -> bool:
        """Whether something is still to come."""
        gone = [client.client_id for client in self.clients.values() if client.has_vanished]
        return (
            bool(self.late)
            or any(key in keys for keys in self.keys_of_shards for key in DUE)
            or any(ORPHANS in keys for keys in self.keys_of_shards if not self._losses)
            or any(map(self._sockets_of, gone))
        )

    @property
    def may_hold_keys(self) -> bool:
        """Whether a node has messages of a group with an order: it may wait for the answer to its next question."""
        return self.plan.is_ordered and any(key.startswith(b"mq:gl:") for key in self.keys)

    def judge(self) -> None:
        """Judge the cluster, which is quiet."""
        for name, node in self.nodes.items():
            if node.serves and node.is_away and not node.stops:
                self.found(f"L1 {name} has no link to Redis long after the faults")
        for name in sorted(self._expired):
            self.clients[name].forget()
        for finding in differences(self._lives(), self.keys_of_shards, self.plan.is_ordered):
            self.found(finding)
        retained = self._read_retained()
        self._judge_history(retained)
        self._judge_bystanders()
        for keys in self.keys_of_shards:
            self._judge_keys(keys)
        self._judge_bytes()

    def _judge_bystanders(self) -> None:
        """Judge the clients whose shards were there while another was away."""
        shards = {
            client.name: shard_of(client.name.encode(), self.plan.shards)
            for client in self.plan.clients
            if client.role == alone.ROLE
        }
        away = [
            alone.Away(self.servers.index(server), since, until) for server, since, until in self.actions.times_away
        ]
        events = [*zip(self.history.times, self.history.events, strict=True)]
        for finding in alone.judge(events, self.actions.asked, away, shards, self._healed):
            self.found(finding)

    def _judge_keys(self, keys: Mapping[bytes, Any]) -> None:
        """Judge the keys of a shard."""
        for finding in checker.left_over(keys, {self._tenant + name for name in self._expired}):
            # Redis may have got back a message whose publisher has had PUBCOMP.
            if not (self._losses and finding.startswith("S1 mq:in:")):
                self.found(finding)
        # A node may have acknowledged a message that Redis lost, and gave its number to another: a push corrects that.
        if not self._losses:
            for finding in checker.miscounted(keys):
                self.found(finding)
        for finding in checker.misplaced(keys):
            self.found(finding)

    def _judge_history(self, retained: dict[str, dict[str, bytes]]) -> None:
        """Judge what the clients have seen."""
        plan, losses = self.plan, self._losses
        roles = {role: {client.name for client in plan.clients if client.role == role} for role in FILTERS}
        members = roles["worker"] | roles["helper"]
        ends = [end for node in self.nodes.values() for end in node.ends]
        deaths, backs = (
            sorted(death for server in self.servers for death in server.deaths),
            [node.backs for node in self.nodes.values()],
        )
        excuses = Excuses(self.history, self.history.times, losses, plan.replicas, ends, deaths, backs)
        judged = [roles[role] for role in ("visitor", "worker", "helper")]
        for finding in checker.foreign(self.history, self._numbers):
            self.found(finding)
        found = checker.judge(excuses, *judged, roles["guest"] | roles["latecomer"], retained)
        if not losses and plan.limits == NO_LIMITS:
            found += checker.stale(self.history, roles["visitor"], next(iter(retained.values()), {}))
        # A second end of Redis may fence all nodes. Then none lives, and deadlines follow the wall clock (CLUSTER.md).
        if not losses and not (self._sets_clock and len(deaths) > 1):
            found += self._late_or_early(roles["subscriber"])
        dropped = sum(node.dropped for node in self.nodes.values())
        listeners = sorted(roles["subscriber"])
        none = excused(found, self.history, plan.limits, self._drops, dropped, listeners, sorted(members))
        for finding in found:
            # A commit that Redis has lost is published once more, when its client asks again.
            if finding not in none and not (losses and "transactor/" in finding):
                self.found(finding)
        if not plan.is_ordered:  # else a message may wait behind one that is at a member
            for finding in checker.late(self.history, members, self.redis.first_fault):
                self.found(finding)
        elif not losses:
            for finding in checker.disordered_in_group(self.history, members):
                self.found(finding)

    def _late_or_early(self, listeners: set[str]) -> list[str]:
        timeline = [*zip(self.history.times, self.history.events, strict=True)]
        lives = [life for client in self.clients.values() for life in client.lives]
        return [*timed.judge(timeline, lives, listeners, self.redis.first_fault, self._healed, self._early)]

    def _judge_bytes(self) -> None:
        for keys in self.keys_of_shards:
            self._drops.judge(keys)
            if finding := checker.miscounted_for(self._tenant.encode(), keys):
                self.found(finding)

    def _lives(self) -> dict[str, ClusterLife]:
        """The parts of the nodes that serve clients."""
        nodes = {name: node.node for name, node in self.nodes.items() if node.serves and not node.is_away}
        found = {name: node.coordinator.life for name, node in nodes.items() if node is not None}
        return {name: each for name, each in found.items() if isinstance(each, ClusterLife)}

    def _read_retained(self) -> dict[str, dict[str, bytes]]:
        """The retained messages that a new subscriber finds at each node."""
        world = self._world
        history = TimedHistory(world)
        readers = {
            name: SimulatedClient(
                f"reader of {name}",
                SimulatedBroker(world, self._network, {name: self._ports[name]}, self._troubles, label=self._label),
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
