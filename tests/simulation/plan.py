"""The plan of a run: what clients do and which faults happen, with their times. All of it comes from the seed.

A plan is a list of steps, and any of them can be left out: so a failing run is shrunk.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

NODES = ("n0", "n1", "n2")
FIRST = 1500  # milliseconds until which the clients connect and subscribe
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
        role: publisher, subscriber, worker, visitor, keeper or mortal.
        qos: of its subscriptions.
        node: of its first connection; empty: any.
    """

    name: str
    role: str
    level: int
    clean: bool = False
    qos: int = 2
    node: str = ""


@dataclass(frozen=True)
class Plan:
    """A run."""

    seed: int
    clients: tuple[ClientPlan, ...]
    steps: tuple[Step, ...]
    faults: frozenset[int]  # the places of the steps that are faults
    replicas: int = 0  # `cluster.replicas`
    most_pushes: int = 0  # entries for queues after which a commit is cut; 0 = as in the product

    def without(self, places: set[int]) -> "Plan":
        """The plan without some steps, which become nothing, so that the others keep their places."""
        steps = tuple(replace(step, kind="nothing") if i in places else step for i, step in enumerate(self.steps))
        return replace(self, steps=steps)


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(seed)
    clients = _clients(rng)
    steps = [*_actions(rng, clients)]
    faults = [*_faults(rng, clients)]
    replicas = 0
    if seed % 2:  # so that even seeds have the plans that they have always had
        replicas = int(rng.random() < 0.4)
        faults += [*_faults_of_data(rng, replicas), *_faults_of_repairs(rng)]
    both = sorted([*steps, *faults], key=lambda step: step.time)
    wanted = set(faults)
    return Plan(
        seed,
        tuple(clients),
        tuple(both),
        frozenset(i for i, step in enumerate(both) if step in wanted),
        replicas,
        most_pushes=int(seed % 4 == 3),
    )


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


def _actions(rng: Random, clients: list[ClientPlan]) -> list[Step]:
    """What clients do of their own accord."""
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
    """Faults of nodes, of Redis and of the network; each says how long it lasts."""
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
