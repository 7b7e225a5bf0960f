"""P1: while one primary of several is away, clients of the others are answered as ever.

A plan of this kind has no faults but that one primary after the other is killed, or stands still. Each shard has a
*bystander*, whose messages and subscriptions concern its own shard, and the home of its node.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq.loadtest.prove.history import Acknowledged, Ended, Event, Published, Subscribed
from tests.simulation.clock import NS
from tests.simulation.limits import NO_LIMITS
from tests.simulation.plan import FIRST, LAST, ClientPlan, Plan, Step
from tests.simulation.world import MILLI

PROMPT = NS  # in which answers come
STEADY = 3 * NS  # after which a shard that was away, and its clients, are as before
OFTEN = 120  # milliseconds between two messages of a bystander
ROLE = "bystander"


@dataclass(frozen=True)
class Away:
    """A time, in nanoseconds, in which the primary of a shard does not reply."""

    shard: int
    begins: int
    ends: int


def with_bystanders(plan: Plan) -> Plan:
    """The plan of a cluster with several shards: of its faults only primaries that are away, one at a time."""
    rng = Random(plan.seed ^ 0xA10E)
    names = [
        next(name for name in (f"bystander {n}" for n in count()) if shard_of(name.encode(), plan.shards) == shard)
        for shard in range(plan.shards)
    ]
    clients = (*plan.clients, *(ClientPlan(name, ROLE, rng.choice((4, 5))) for name in names))
    steps = [step for place, step in enumerate(plan.steps) if place not in plan.faults]
    for name in names:
        steps += [Step(at, "publish", (name, f"by/{name}", rng.choice((1, 2)), 1)) for at in range(FIRST, LAST, OFTEN)]
        steps += [Step(at, "subscribe_again", (name,)) for at in range(FIRST, LAST, rng.randrange(200, 600))]
    at = FIRST + rng.randrange(100, 1500)
    while at < LAST - 500:
        milliseconds = rng.choice((rng.randrange(100, 1000), rng.randrange(1000, 4000)))
        steps.append(Step(at, rng.choice(("kill_redis", "freeze_redis")), (milliseconds,)))
        at += milliseconds + rng.randrange(500, 2000)
    faults = ("kill_redis", "freeze_redis")
    both = sorted(steps, key=lambda step: step.time)
    places = frozenset(place for place, step in enumerate(both) if step.kind in faults)
    # Names of a tenant's clients would be of other shards.
    return replace(
        plan, clients=clients, steps=tuple(both), faults=places, replicas=0, tenant="", limits=NO_LIMITS, most_pushes=0
    )


def judge(
    events: Sequence[tuple[int, Event]],
    asked: Iterable[tuple[int, str, int]],
    away: Sequence[Away],
    shards: dict[str, int],
    until: int,
) -> Iterator[str]:
    """The findings of P1.

    Args:
        events: of all clients, with their times.
        asked: SUBSCRIBE packets: time, client, the home of its node.
        away: the times of all primaries.
        shards: of the bystanders, by name.
        until: when the faults end.
    """

    def is_steady(shard: int, time: int) -> bool:
        return not any(
            each.shard == shard and each.begins < time + PROMPT and time < each.ends + STEADY for each in away
        )

    waiting: dict[tuple[str, bytes], tuple[int, int]] = {}
    wanted = [(time, name) for time, name, home in asked if is_steady(home, time)]
    for time, event in events:
        name = event.client
        if name not in shards:
            continue
        if isinstance(event, Published):
            waiting.setdefault((name, event.payload), (time, event.qos))
        elif isinstance(event, Acknowledged) and event.by in ("PUBACK", "PUBCOMP"):
            since, _ = waiting.pop((name, event.payload), (time, 0))
            if time - since > PROMPT and is_steady(shards[name], since):
                yield f"P1 {name} waited for {event.by} for {(time - since) / NS:.1f} s, and its shard was there"
        elif isinstance(event, Subscribed):
            since = next((since for since, who in wanted if who == name and since <= time), time)
            wanted = [(since, who) for since, who in wanted if who != name or since > time]
            if time - since > PROMPT and is_steady(shards[name], since):
                yield f"P1 {name} waited for SUBACK for {(time - since) / NS:.1f} s, and its shards were there"
        elif isinstance(event, Ended) and time < until and is_steady(shards[name], time):
            yield f"P1 {name} lost its connection at {time / MILLI:.0f} ms, and its shard was there"
