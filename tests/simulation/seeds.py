"""The plan of a seed: one that chance makes, or one of eight a plan that has found a fault, with other times."""

from dataclasses import replace
from random import Random

from tests.simulation.plan import Plan, make_plan
from tests.simulation.regressions import REGRESSIONS

REPEATED = 7  # of eight seeds


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    if seed % 8 != REPEATED:
        return make_plan(seed)
    rng = Random(seed)
    names = sorted(REGRESSIONS)
    plan = REGRESSIONS[names[seed // 8 % len(names)]]  # one after the other, so that few seeds have all
    moved = rng.choice((0, 2, 50))  # milliseconds
    steps = [replace(step, time=step.time + rng.randrange(-moved, moved + 1)) for step in plan.steps]
    return replace(plan, seed=seed, steps=tuple(sorted(steps, key=lambda step: step.time)))
