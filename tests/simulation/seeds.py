"""The plan of a seed: one that chance makes, or one of eight a plan that needs a rare meeting, with other times."""

from dataclasses import replace
from random import Random

from tests.simulation.meetings import MEETINGS
from tests.simulation.plan import Plan, make_plan
from tests.simulation.regressions import REGRESSIONS

REPEATED = 7  # of eight seeds
# Of 64 seeds, 16 each: with 1 Redis counts applied changes while another node is there, with 2 while all three are.
COUNTED_FROM = (0, 1, 0, 2)
LINGER_SECONDS = (0.0, 1.0)  # of 128 seeds, 64 each
LATE_PUSHES = (False, True)  # of 512 seeds, 256 each
PLANS = REGRESSIONS | MEETINGS


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    if seed % 8 != REPEATED:
        plan = make_plan(seed)
    else:
        names = sorted(PLANS)
        plan = varied(PLANS[names[seed // 8 % len(names)]], seed)  # one after the other, so that few seeds have all
    return replace(
        plan,
        counted_from=COUNTED_FROM[seed // 16 % 4],
        linger_seconds=LINGER_SECONDS[seed // 64 % 2],
        late_pushes=LATE_PUSHES[seed // 256 % 2],
    )


def varied(plan: Plan, seed: int) -> Plan:
    """A plan whose steps are up to 2 or 50 ms earlier or later, or as they are."""
    rng = Random(seed)
    moved = rng.choice((0, 2, 50))  # milliseconds
    steps = [replace(step, time=step.time + rng.randrange(-moved, moved + 1)) for step in plan.steps]
    return replace(plan, seed=seed, steps=tuple(sorted(steps, key=lambda step: step.time)))
