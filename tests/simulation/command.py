"""The command: seeds, their findings, and the story of a failing one."""

import argparse
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

from tests.simulation import clock
from tests.simulation.plan import Plan, make_plan


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed, and print its story")
    parser.add_argument("--seeds", default="", metavar="A..B", help="run these seeds; print those that fail")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no run after so many seconds")
    parser.add_argument("--regression", default="", help="run a plan that has found a fault (regressions.py)")
    parser.add_argument("--mutation", default="", help="break the product in this way (mutations.py)")
    parser.add_argument("--detailed", action="store_true", help="the story has each packet and each command of Redis")
    parser.add_argument("--shrink", action="store_true", help="shrink a failing seed, and print the short story")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failing seed")
    parser.add_argument("--mutations", type=int, default=0, metavar="N", help="find each mutation within N seeds")
    parser.add_argument("--digests", action="store_true", help="print the digest of each history")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns the exit status: 1 if there are findings."""
    options = parse(arguments)
    if not clock.is_ready():
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], clock.environment())
    from tests.simulation.cluster import Result, Run
    from tests.simulation.mutations import MUTATIONS
    from tests.simulation.regressions import REGRESSIONS
    from tests.simulation.shrink import shrink

    first, _, last = options.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1) if first else [options.seed or 0]
    names = [options.mutation] if options.mutation else []

    def run(plan: Plan) -> Result:
        with ExitStack() as stack:
            mutations = [MUTATIONS[name] for name in names]
            for mutation in mutations:
                stack.enter_context(mutation.applied())
            change = mutations[0].change if mutations else bytes
            return Run(plan, detailed=options.detailed, change=change).run()

    if options.mutations:
        missed = 0
        for name, mutation in MUTATIONS.items():
            names[:] = [name]
            found = next((n for n in range(1, options.mutations + 1) if (result := run(make_plan(n))).findings), 0)
            missed += not found
            rules = ", ".join(sorted({finding.split()[0] for finding in result.findings}))
            cells = [name, mutation.guarantee, mutation.text, str(found or "not found"), rules]
            print(f"| {' | '.join(cells)} |", flush=True)
        print(f"{len(MUTATIONS)} seeds, {missed} with findings")
        return int(missed > 0)

    began, done, failing, virtual = time.clock_gettime(time.CLOCK_MONOTONIC_RAW), 0, 0, 0.0
    for seed in seeds:
        took = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - began
        if options.seconds and took > options.seconds:
            break
        result = run(replace(REGRESSIONS[options.regression], seed=seed) if options.regression else make_plan(seed))
        done, virtual = done + 1, virtual + result.seconds
        if done % 500 == 0 and options.keep_going:
            print(f"{done} seeds, up to {seed}", file=sys.stderr, flush=True)
        if options.digests:
            print(f"seed {seed}: {result.digest} {result.seconds:.1f} s, {result.cpu:.2f} s of CPU, {result.counts}")
        if result.findings:
            failing += 1
            print(f"seed {seed} has {len(result.findings)} findings:")
            print("".join(f"    {finding}\n" for finding in result.findings[:20]), end="", flush=True)
        if options.seed is not None or (result.findings and options.shrink):
            if result.findings and options.shrink:
                result = shrink(result, run)
                print(f"shrunk: {sum(step.kind != 'nothing' for step in result.plan.steps)} steps are left")
            print_story(result)
        if result.findings and not options.keep_going:
            break
    took = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - began
    print(f"{done} seeds, {failing} with findings; {virtual:.0f} s of virtual time in {took:.1f} s")
    return int(failing > 0)


def print_story(result: "object") -> None:
    """The plan, the story and the findings of a run."""
    from tests.simulation.cluster import Result

    assert isinstance(result, Result)
    print("the plan:")
    for step in result.plan.steps:
        if step.kind != "nothing":
            print(f"    {step}")
    print("the story:")
    for line in result.lines:
        print(f"    {line}")
    print("the findings:" if result.findings else "no findings")
    for finding in result.findings:
        print(f"    {finding}")
