"""The plan of a run: acts of clients and faults, with their times. All of it comes from the seed.

A plan is a list of steps, and any of them can be left out: so a failing run is shrunk.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from flockmq.loadtest.prove.client import NEVER
from tests.simulation.limits import NO_LIMITS, Limits

NODES = ("n0", "n1", "n2")
FIRST = 1500  # milliseconds until which the clients connect and subscribe
TIMED = 1  # of four seeds: all that is due at a time, and clocks that step
KILLED, AIMED, AIMED_AT_CLIENTS = 2, 3, 6  # of eight seeds: aimed steps
NARROW = 4  # of eight seeds: subscribers of a group soon have no room
HELPED = 4  # of sixteen seeds, also NARROW: one subscriber more has a clean session
HELPER = "helper 0"
TENANTS = (0, 5)  # of eight seeds: clients of a tenant, with a limit for its queues
TENANT = "acme"
LATE = (2, 9, 13)  # of sixteen seeds: a client connects, and subscribes, among the other steps
DRAINED = (5, 10)  # of sixteen seeds: a node is drained, and restarted
FULL = (7, 8, 12)  # of sixteen seeds: queues are soon full
TRANSACTING = (3, 6, 11)  # of sixteen seeds: a client publishes in transactions
ORDERED = (2, 3, 10, 14)  # of sixteen seeds, those in which the group keeps the order of each publisher
LAST = 6500  # end of the last step; faults that go on are healed then


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        time: milliseconds since the start.
        kind: the name of a method of `faults.Actions`.
        arguments: of the method.
    """

    time: int
    kind: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.time:6} ms  {self.kind} {' '.join(map(str, self.arguments))}"


@dataclass(frozen=True)
class ClientPlan:
    """A client.

    Attributes:
        role: publisher, subscriber, latecomer (a subscriber), worker, helper (a worker with a clean session), visitor,
            keeper, mortal, guest or transactor.
        qos: of its subscriptions.
        node: of its first connection; empty: any.
        delay, expiry: Will Delay Interval and Session Expiry Interval in seconds, of a guest.
        late: milliseconds until it connects first.
        is_patient: it waits for CONNACK for as long as the connection stays.
    """

    name: str
    role: str
    level: int
    clean: bool = False
    qos: int = 2
    node: str = ""
    delay: int = 0
    expiry: int = NEVER
    late: int = 0
    is_patient: bool = False


@dataclass(frozen=True)
class Plan:
    """A run."""

    seed: int
    clients: tuple[ClientPlan, ...]
    steps: tuple[Step, ...]
    faults: frozenset[int]  # the places of the steps that are faults
    replicas: int = 0  # `cluster.replicas`
    most_pushes: int = 0  # entries for queues after which a commit is cut; 0 = as in the product
    window: int = 0  # `shared.window`; 0 = as in the product
    log_seconds: int = 0  # that a node keeps its repair log; 0 = as in the product
    counted_from: int = 0  # other nodes from which on Redis counts applied changes; 0 = as in the product
    linger_seconds: float = 0.0  # that routes linger; 0 = as in the product
    late_pushes: bool = False  # Redis sends a caller its pushes behind the reply, as from 7.2 on; else before it
    tenant: str = ""  # of all clients; empty: none
    limits: Limits = NO_LIMITS
    is_ordered: bool = False  # the group is declared, with the order `publisher`
    server: int = 0  # the number of the Redis with the keys of the cluster, or of its first shard
    shards: int = 1  # each at a Redis of its own
    beside: tuple["Plan", ...] = ()  # the plans of the other clusters of the run

    @property
    def clusters(self) -> tuple["Plan", ...]:
        """The plan of each cluster of the run."""
        return (self, *self.beside)

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The steps of all clusters."""
        return tuple(step for plan in self.clusters for step in plan.steps)

    @property
    def all_faults(self) -> frozenset[int]:
        """The places of the faults among them."""
        found, before = set(), 0
        for plan in self.clusters:
            found |= {before + place for place in plan.faults}
            before += len(plan.steps)
        return frozenset(found)

    def sets_clock(self, server: int) -> bool:
        """Whether a step of a cluster sets the wall clock of a Redis."""
        steps = (step for plan in self.clusters if plan.server == server for step in plan.steps)
        return any(step.kind == "step_clock" and "redis" in step.arguments for step in steps)

    def without(self, places: set[int]) -> "Plan":
        """The plan without some of all steps, which become nothing, so that the others keep their places."""
        steps = tuple(replace(step, kind="nothing") if i in places else step for i, step in enumerate(self.steps))
        beside, before = [], len(steps)
        for plan in self.beside:
            beside.append(plan.without({place - before for place in places}))
            before += len(plan.steps)
        return replace(self, steps=steps, beside=tuple(beside))


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(seed)
    is_ordered = seed % 16 in ORDERED
    clients = [*_clients(rng), *(_subscribers(Random(seed ^ 0x0DE2)) if is_ordered else ())]
    steps = [*_actions(rng, clients)]
    faults = [*_faults(rng, clients)]
    replicas = 0
    if seed % 2:  # even seeds lose no data of Redis
        replicas = int(rng.random() < 0.4)
        faults += [*_faults_of_data(rng, replicas), *_faults_of_repairs(rng)]
    if seed % 4 == TIMED:
        guests = _guests(rng)
        clients += guests
        steps += _timed(rng, clients, guests)
        faults = [*_steps_of_clocks(rng), *(faults if rng.random() < 0.5 else ())]
        if rng.random() < 0.3:  # perhaps the node that publishes the due messages
            faults.append(Step(rng.randrange(FIRST, LAST - 1500), "kill", (rng.choice(NODES), rng.randrange(50, 2000))))
    if seed % 8 == KILLED:
        faults += _killed_in_flight(rng, clients)
    if seed % 8 == AIMED:
        faults = [*_aimed(rng, clients), *(faults if rng.random() < 0.5 else ())]
    if seed % 8 == AIMED_AT_CLIENTS:
        faults = [*_aimed_at_clients(rng, clients), *(faults if rng.random() < 0.5 else ())]
    if seed % 16 == HELPED and _names(clients, "worker"):
        clients.append(ClientPlan(HELPER, "helper", rng.choice((4, 5)), clean=True, qos=1))
        faults += _helper_dies(rng, rng.choice(_names(clients, "publisher")))
    if is_ordered:
        faults += _link_lost_amid_messages(Random(seed ^ 0xA41D), rng.choice(_names(clients, "publisher")))
    if seed % 16 in LATE:
        clients.append(ClientPlan("latecomer", "latecomer", rng.choice((4, 5)), late=rng.randrange(FIRST, LAST - 1000)))
    if seed % 16 in DRAINED:
        faults.append(Step(rng.randrange(FIRST, LAST - 1500), "drain", (rng.choice(NODES), rng.randrange(500, 4000))))
    if seed % 16 in TRANSACTING:
        chance = Random(seed ^ 0x7A25)
        clients.append(ClientPlan("transactor", "transactor", 5))
        steps += [Step(chance.randrange(FIRST, LAST), "transact", ("transactor",)) for _ in range(40)]
    both = sorted([*steps, *faults], key=lambda step: step.time)
    wanted = set(faults)
    return Plan(
        seed,
        tuple(clients),
        tuple(both),
        frozenset(i for i, step in enumerate(both) if step in wanted),
        replicas,
        most_pushes=int(seed % 8 == AIMED),
        window=2 if seed % 8 == NARROW or (is_ordered and seed % 3) else 0,
        tenant=TENANT if seed % 8 in TENANTS else "",
        limits=_limits(Random(seed ^ 0xF011), has_tenant=seed % 8 in TENANTS) if seed % 16 in FULL else NO_LIMITS,
        is_ordered=is_ordered,
    )


def _limits(rng: Random, *, has_tenant: bool) -> Limits:
    """Limits that a client that is away for some hundred milliseconds may reach."""
    if has_tenant and rng.random() < 0.7:
        return Limits(drop_old=rng.random() < 0.5, tenant_bytes=rng.choice((1024, 2048)))
    return Limits(rng.choice((1, 2, 4)), rng.random() < 0.5, rng.choice((0, 1, 4)))


def _clients(rng: Random) -> list[ClientPlan]:
    found = [ClientPlan(f"publisher {i}", "publisher", rng.choice((3, 4, 5))) for i in range(rng.choice((1, 2, 3)))]
    found += [
        ClientPlan(f"subscriber {i}", "subscriber", rng.choice((4, 5)), qos=2 if i else 1)
        for i in range(rng.choice((2, 2, 3)))
    ]
    found += [ClientPlan(f"worker {i}", "worker", rng.choice((4, 5))) for i in range(rng.choice((0, 2, 3)))]
    found += [
        ClientPlan(f"visitor {i}", "visitor", rng.choice((4, 5)), clean=True, qos=rng.choice((1, 2)))
        for i in range(rng.choice((0, 1, 2, 2)))
    ]
    found += [ClientPlan("keeper", "keeper", rng.choice((4, 5)))]
    found += [
        ClientPlan(f"mortal {i}", "mortal", rng.choice((4, 5)), clean=i % 2 == 0) for i in range(rng.choice((1, 2, 3)))
    ]
    return found


def _subscribers(rng: Random) -> list[ClientPlan]:
    """Subscribers with clean sessions of a group with an order."""
    return [
        ClientPlan(f"helper {i}", "helper", rng.choice((4, 5)), clean=True, qos=1) for i in range(rng.choice((1, 2, 3)))
    ]


def _actions(rng: Random, clients: list[ClientPlan]) -> list[Step]:
    """The acts of clients without a fault."""
    publishers = [client.name for client in clients if client.role == "publisher"]
    others = [client.name for client in clients if client.role not in ("keeper", "visitor")]
    visitors = [client.name for client in clients if client.role == "visitor"]
    steps = []
    for _ in range(rng.choice((15, 30, 45))):
        time = rng.randrange(FIRST, LAST)
        chance = rng.random()
        if chance < 0.65:
            count, qos = rng.choice((1, 1, 3, 8)), rng.choice((0, 1, 1, 2, 2))
            steps.append(Step(time, "publish", (rng.choice(publishers), f"t/{rng.randrange(3)}", qos, count)))
        elif chance < 0.75:
            steps.append(Step(time, "keep", (rng.randrange(4), rng.random() < 0.2)))
        elif chance < 0.80:
            steps.append(Step(time, "lose", (rng.choice(others),)))
        elif chance < 0.85:
            steps.append(Step(time, "lose", (rng.choice(visitors or others),)))
        elif chance < 0.91:
            steps.append(Step(time, "lose_at_packet", (rng.choice(others), rng.randrange(1, 6))))
        elif chance < 0.95:
            steps.append(Step(time, "abandon", (rng.choice(others),)))
        else:
            mortals = [client.name for client in clients if client.role == "mortal"]
            steps.append(Step(time, "leave", (rng.choice(mortals),)))
    return steps


def _faults(rng: Random, clients: list[ClientPlan]) -> list[Step]:
    """Faults of nodes, of Redis and of the network; each has its duration."""
    steps = []
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        time = rng.randrange(FIRST, LAST - 500)
        node = rng.choice(NODES)
        long = int(rng.choice((rng.uniform(50, 600), rng.uniform(600, 4000))))
        client = rng.choice(clients).name
        steps.append(
            rng.choice(
                (
                    Step(time, "kill", (node, long)),
                    Step(time, "kill_at_write", (node, rng.randrange(1, 30), long)),
                    Step(time, "kill_at_write", (node, rng.randrange(1, 8), long)),
                    Step(time, "stop", (node, long)),
                    Step(time, "freeze", (node, long)),
                    Step(time, "freeze", (node, long)),
                    Step(time, "cut", (node, "redis", rng.choice(("both", "there", "back")), long)),
                    Step(time, "cut", (node, "redis", rng.choice(("both", "there", "back")), long)),
                    Step(time, "cut", (client, node, rng.choice(("both", "there", "back")), long)),
                    Step(time, "reset_link", (node,)),
                    Step(time, "away", (client, long)),
                    Step(time, "slow", (rng.choice((node, "redis", client)), rng.choice((5, 30)), long)),
                    Step(time, "kill_redis", (long,)),
                    Step(time, "freeze_redis", (long,)),
                )
            )
        )
    return steps


def _faults_of_data(rng: Random, replicas: int) -> list[Step]:
    """Faults that take data of Redis, or keep it from taking more."""
    steps = []
    for _ in range(rng.choice((0, 1, 1, 2))):
        time = rng.randrange(FIRST, LAST - 1500)
        lost = int(rng.choice((rng.uniform(1, 60), rng.uniform(60, 1000))))
        long = int(rng.choice((rng.uniform(10, 200), rng.uniform(200, 2500))))
        steps.append(
            rng.choice(
                (
                    Step(time, "redis_loses", (lost, long)),
                    Step(time, "redis_loses", (lost, long)),
                    Step(time, "redis_loses", (lost, 5)),
                    Step(time, "redis_loses", (lost, 5)) if replicas else Step(time, "redis_loses_all", (long,)),
                    Step(time, "refuse", (rng.choice(("memory", "memory", "disk", "replicas")), long)),
                )
            )
        )
    return steps


def _faults_of_repairs(rng: Random) -> list[Step]:
    """Links that end again while a node repairs them."""
    return [
        Step(rng.randrange(FIRST, LAST - 500), "reset_link_twice", (rng.choice(NODES), rng.randrange(1, 30)))
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]


def _aimed(rng: Random, clients: list[ClientPlan]) -> list[Step]:
    """Steps that have to meet within milliseconds, which chance seldom brings together."""
    time = rng.randrange(FIRST, LAST - 3000)
    publisher, visitors = rng.choice(_names(clients, "publisher")), _names(clients, "visitor")
    topic, qos = f"t/{rng.randrange(3)}", rng.choice((1, 2))
    aims = [_lost_reply(rng, time, publisher, topic), _killed_at_commit(rng, time, publisher, topic)]
    if visitors:
        aims += [
            _change_on_its_way(rng, publisher, visitors, topic, qos),
            _admitted_without_redis(rng, time, publisher, rng.choice(visitors), topic),
        ]
    return rng.choice(aims)


def _aimed_at_clients(rng: Random, clients: list[ClientPlan]) -> list[Step]:
    """Likewise steps of clients, before any fault."""
    publisher, workers = rng.choice(_names(clients, "publisher")), _names(clients, "worker")
    if not workers or rng.random() < 0.2:
        return _moves(rng, rng.choice(clients).name)
    return _worker_away(rng, publisher, rng.choice(workers), f"t/{rng.randrange(3)}", rng.choice((2, 1)))


def _names(clients: list[ClientPlan], role: str) -> list[str]:
    return [client.name for client in clients if client.role == role]


def _killed_in_flight(rng: Random, clients: list[ClientPlan]) -> list[Step]:
    """A node is killed while Redis has not got what it has sent: a publisher may have no acknowledgement of that."""
    publisher, time = rng.choice(_names(clients, "publisher")), rng.randrange(FIRST, LAST - 500)
    return [
        Step(time, "cut_node_of", (publisher, "there", 100)),
        *(Step(time + 5 * i, "publish", (publisher, f"t/{i % 3}", 1, 1)) for i in range(1, 5)),
        Step(time + 40, "kill_node_of", (publisher, rng.randrange(50, 2000))),
    ]


def _killed_at_commit(rng: Random, time: int, publisher: str, topic: str) -> list[Step]:
    """A node is killed while Redis has a part of its commits: perhaps between two commits of one message."""
    number, executes = rng.randrange(1, 8), rng.random() < 0.8
    return [
        Step(time, "kill_at_command", (publisher, "flockmq_commit", number, executes, rng.randrange(50, 2000))),
        Step(time + 1, "publish", (publisher, topic, 2, rng.choice((1, 3)))),
    ]


def _lost_reply(rng: Random, time: int, publisher: str, topic: str) -> list[Step]:
    """Redis has executed a commit, and its node gets no reply."""
    return [
        Step(time, "lose_reply", (publisher, "flockmq_commit", rng.randrange(1, 5))),
        Step(time + 1, "publish", (publisher, topic, 2, rng.choice((1, 3)))),
    ]


def _change_on_its_way(rng: Random, publisher: str, visitors: list[str], topic: str, qos: int) -> list[Step]:
    """A client subscribes while the node of a publisher receives nothing from Redis: late, so that it mostly stays.

    No other client has this filter at its node then: that node's route is new.
    """
    time = rng.randrange(LAST - 1800, LAST - 1000)
    visitor = rng.choice(visitors)
    return [
        *(Step(time - 400, "move_to_node_of", (each, publisher)) for each in visitors),
        Step(time - 100, "away", (visitor, LAST)),
        Step(time, "cut_node_of", (publisher, "back", rng.randrange(200, 900))),
        Step(time + 10, "come_back_away_from", (visitor, publisher)),
        *(Step(time + later, "publish", (publisher, topic, qos, 1)) for later in (20, 50, 100, 150)),
    ]


def _admitted_without_redis(rng: Random, time: int, publisher: str, visitor: str, topic: str) -> list[Step]:
    """A client connects while Redis is away, and to another node when it is back."""
    first, second = rng.sample(NODES, 2)
    return [
        Step(time, "kill_redis", (rng.randrange(200, 600),)),
        Step(time + 100, "move", (visitor, first)),
        Step(time + 1500, "move", (visitor, second)),
        Step(time + 1700, "publish", (publisher, topic, 1, 3)),
    ]


def _worker_away(rng: Random, publisher: str, worker: str, topic: str, qos: int) -> list[Step]:
    """A subscriber loses its connection while it gets messages, for longer than they wait for it.

    While its node has not seen that yet, more messages arrive, which are not sent.
    """
    time = FIRST + rng.randrange(400)
    if rng.random() < 0.3:
        gone = Step(time + rng.randrange(1, 5), "away", (worker, LAST))
    else:
        gone = Step(time - 1, "away_at_packet", (worker, rng.randrange(1, 4), LAST))
    return [gone, *(Step(time + later, "publish", (publisher, topic, qos, 4)) for later in range(4))]


def _helper_dies(rng: Random, publisher: str) -> list[Step]:
    """The node of a subscriber with a clean session is killed while it has messages that the subscriber has not
    answered."""
    time = rng.randrange(FIRST, LAST - 1500)
    return [
        Step(time, "slow", (HELPER, 30, 200)),
        Step(time + 5, "publish", (publisher, f"t/{rng.randrange(3)}", 1, 8)),
        Step(time + rng.randrange(7, 15), "kill_node_of", (HELPER, rng.randrange(50, 2000))),
    ]


def _link_lost_amid_messages(rng: Random, publisher: str) -> list[Step]:
    """A node, or all, lose the link to Redis while subscribers are busy, and messages are on their way to them."""
    time, node = rng.randrange(FIRST, LAST - 2000), rng.choice(NODES)
    long = rng.randrange(50, 1500)
    topic, qos = f"t/{rng.randrange(3)}", rng.choice((1, 1, 2))
    ends = (
        Step(time + rng.randrange(4, 30), "kill_redis", (long,)),
        Step(time + rng.randrange(4, 30), "reset_link", (node,)),
        Step(time + rng.randrange(4, 30), "cut", (node, "redis", "back", long)),
        Step(time + rng.randrange(4, 30), "freeze_redis", (long,)),
    )
    return [
        Step(time, "slow", (rng.choice((HELPER, publisher, node)), rng.choice((5, 30)), rng.choice((200, 2000)))),
        *(Step(time + rng.randrange(40), "publish", (publisher, topic, qos, rng.choice((1, 4, 8)))) for _ in range(4)),
        rng.choice(ends),
        *(rng.choice(ends) for _ in range(rng.choice((0, 0, 1)))),
        Step(time + long + rng.randrange(600), "publish", (publisher, topic, qos, 4)),
    ]


def _moves(rng: Random, client: str) -> list[Step]:
    """A client connects to one node after the other, and leaves its earlier connections open."""
    time = FIRST + rng.randrange(400)
    return [Step(time + 200 * i, "move", (client, rng.choice(NODES))) for i in range(3)]


def _guests(rng: Random) -> list[ClientPlan]:
    """Clients with delayed wills, and sessions that expire."""
    return [
        ClientPlan(f"guest {i}", "guest", 5, qos=rng.choice((1, 2)), delay=rng.choice((1, 2, 5)), expiry=expiry)
        for i, expiry in enumerate(rng.sample((2, 3, 20), rng.choice((1, 2))))
    ]


def _timed(rng: Random, clients: list[ClientPlan], guests: list[ClientPlan]) -> list[Step]:
    """Delayed messages, and guests that go for a while, or for ever."""
    publishers = [client.name for client in clients if client.role == "publisher"]
    steps = [
        Step(
            rng.randrange(FIRST, LAST),
            "delay",
            (rng.choice(publishers), rng.choice((1, 2, 5)), rng.choice((1, 2)), rng.choice((1, 3))),
        )
        for _ in range(rng.choice((2, 4, 8)))
    ]
    for guest in guests:
        kinds = rng.choices(("lose", "abandon", "away"), k=rng.choice((0, 1, 2)))
        for kind in kinds:
            long = (rng.randrange(300, 5000),) if kind == "away" else ()
            steps.append(Step(rng.randrange(FIRST, LAST), kind, (guest.name, *long)))
        if rng.random() < 0.5:
            time = rng.randrange(FIRST, LAST)
            if rng.random() < 0.3:
                steps.append(Step(time, "kill_node_of", (guest.name, rng.randrange(50, 4000))))
            steps.append(Step(time + 1, "vanish", (guest.name,)))
    return steps


def _steps_of_clocks(rng: Random) -> list[Step]:
    """Wall clocks that are set, forward or back."""
    return [
        Step(
            rng.randrange(FIRST, LAST),
            "step_clock",
            (rng.choice((*NODES, "redis", "redis", "redis")), rng.choice((-1, 1)) * rng.choice((100, 2000, 3_600_000))),
        )
        for _ in range(rng.choice((0, 0, 1, 1, 2)))
    ]


def with_shards(plan: Plan, shards: int) -> Plan:
    """The plan with several shards: queues and tenants have no limits."""
    return replace(plan, shards=shards, limits=NO_LIMITS, tenant="", most_pushes=0)
