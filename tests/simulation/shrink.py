"""Shrinks a failing plan: leaves out steps as long as a finding of the same rule remains."""

from collections.abc import Callable

from tests.simulation.plan import Plan
from tests.simulation.run import Result

MAX_RUNS = 150


def rules_of(findings: list[str]) -> set[str]:
    """The rules that findings name."""
    return {finding.split()[0] for finding in findings}


def shrink(first: Result, run: Callable[[Plan], Result], max_runs: int = MAX_RUNS) -> Result:
    """The shortest failing run that was found.

    Args:
        first: a run with findings.
        run: runs a plan.
        max_runs: at most.
    """
    rules, best = rules_of(first.findings), first
    runs = 0
    left_out: set[int] = set()
    faults = sorted(first.plan.all_faults)
    others = [place for place in range(len(first.plan.all_steps)) if place not in first.plan.all_faults]
    size = max(1, len(others) // 2)
    groups = [{place} for place in faults]
    while True:
        progress = False
        for group in [*groups, *(set(others[i : i + size]) for i in range(0, len(others), size))]:
            if group <= left_out or runs >= max_runs:
                continue
            runs += 1
            result = run(first.plan.without(left_out | group))
            if rules & rules_of(result.findings):
                left_out |= group
                best, progress = result, True
        others = [place for place in others if place not in left_out]
        if runs >= max_runs or (size == 1 and not progress):
            return best
        size = max(1, size // 2)
