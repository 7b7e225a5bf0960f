"""The plans of runs with several clusters side by side: mostly each at another Redis, sometimes two at one.

Each cluster has the plan of a seed, with its clients and its faults. So one Redis loses data, is away or is slow while
another is not, and each cluster is judged by the faults of its own Redis only.
"""

from dataclasses import replace
from random import Random

from tests.simulation.plan import FIRST, LAST, Plan, Step
from tests.simulation.seeds import plan_of

COUNTS = (2, 2, 2, 2, 2, 2, 2, 3)  # clusters
SHARED = 0.25  # of the runs: the last cluster is at the Redis of the first one, if that has no replica and no set clock
TOGETHER = 0.25  # of the runs: all Redis fail at one time
SEEDS = 1 << 20  # of the clusters beside the first one


def several_of(seed: int) -> Plan:
    """The plan of a seed: the first cluster has the plan that the seed has alone."""
    rng = Random(seed ^ 0x5E7E)
    first = plan_of(seed)
    count = rng.choice(COUNTS)
    servers = [*range(1, count)]
    if rng.random() < SHARED and not first.replicas and not first.sets_clock(0):
        servers[-1] = 0
    # These fields are settings of the process: all its nodes have them.
    settings = {name: getattr(first, name) for name in ("most_pushes", "log_seconds", "counted_from", "linger_seconds")}
    beside = []
    for server in servers:
        plan = replace(plan_of(rng.randrange(SEEDS)), server=server, **settings)
        beside.append(plan if server else _for_two(plan))
    plan = replace(first, beside=tuple(beside))
    return _fail_together(rng, plan) if rng.random() < TOGETHER else plan


def _for_two(plan: Plan) -> Plan:
    """The plan of a cluster at the Redis of another one.

    If that loses all, neither has a replica. If it loses data, and its wall clock is set, sessions of both may end: the
    clock is set by none of the plans.
    """
    clocks = {place for place, step in enumerate(plan.steps) if step.kind == "step_clock" and "redis" in step.arguments}
    return replace(plan.without(clocks), replicas=0)


def _fail_together(rng: Random, plan: Plan) -> Plan:
    """The plan, and at some time each Redis is killed, or stands still."""
    step = Step(
        rng.randrange(FIRST, LAST - 500),
        "at_all_servers",
        (rng.choice(("kill_redis", "freeze_redis")), rng.randrange(50, 2000)),
    )
    place = len([each for each in plan.steps if each.time <= step.time])
    steps = (*plan.steps[:place], step, *plan.steps[place:])
    return replace(plan, steps=steps, faults=frozenset({place, *(each + (each >= place) for each in plan.faults)}))
