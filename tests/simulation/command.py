"""The command: seeds, their findings, and the story of a failing one."""

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

from tests.simulation.alone import with_bystanders
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import ALL, MUTATIONS
from tests.simulation.plan import Plan, with_shards
from tests.simulation.run import Result, Run
from tests.simulation.seeds import PLANS, plan_of, varied
from tests.simulation.several import several_of
from tests.simulation.shard_mutations import SHARDED_PLANS
from tests.simulation.shrink import rules_of, shrink

NAMED = PLANS | SHARDED_PLANS
ALONE = 4  # of so many seeds with several shards one has bystanders
PROGRESS = 500  # seeds between lines about the progress


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed, and print its story")
    parser.add_argument("--seeds", default="", metavar="A..B", help="run these seeds; print the failing ones")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no run after so many seconds")
    parser.add_argument("--plan", default="", help="run a plan with this name (regressions.py, meetings.py)")
    parser.add_argument("--several", action="store_true", help="run two or three clusters side by side (several.py)")
    parser.add_argument(
        "--pushes", choices=("early", "late"), help="when Redis sends a caller its pushes; else by seed"
    )
    parser.add_argument("--mutation", default="", help="break the product in this way (mutations.py)")
    parser.add_argument(
        "--mutations", type=int, default=0, metavar="N", help="find all mutations, or one, within N seeds each"
    )
    parser.add_argument("--detailed", action="store_true", help="the story has each packet and each command of Redis")
    parser.add_argument("--shards", type=int, default=1, metavar="S", help="divide the cluster into shards")
    parser.add_argument("--shrink", action="store_true", help="shrink a failing seed, and print the short story")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failing seed")
    parser.add_argument("--digests", action="store_true", help="print the digest of each history")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns the exit status: 1 if there are findings."""
    options = parse(arguments)
    if options.mutations:
        wanted = [MUTATIONS[options.mutation]] if options.mutation else ALL
        return find_mutations(wanted, options.mutations)
    return run_seeds(options)


def run_plan(plan: Plan, mutation: Mutation | None = None, *, detailed: bool = False) -> Result:
    """Run a plan, on a product with a deliberate fault if one is given."""
    with ExitStack() as stack:
        if mutation is None:
            return Run(plan, detailed=detailed).run()
        stack.enter_context(mutation.applied())
        return Run(plan, detailed=detailed, change=mutation.change).run()


def find_mutations(wanted: "tuple[Mutation, ...] | list[Mutation]", most: int) -> int:
    """Print a table of mutations, each with the first seed that has a finding, or the first variant of its plan (*)."""
    missed = 0
    for mutation in wanted:
        seed, result = 0, None
        plan = NAMED.get(mutation.plan or mutation.name)
        while seed < most and (result is None or not result.findings):
            seed += 1
            made = several_of(seed) if mutation.needs_several else plan_of(seed)
            if mutation.needs_shards:
                made = with_shards(made, 2 + seed % 2)
            result = run_plan(varied(plan, seed) if plan else made, mutation)
        rules = sorted(rules_of(result.findings)) if result is not None else []
        missed += not rules
        found = (str(seed) + "\\*" * (plan is not None)) if rules else f"more than {most}"
        print(
            f"| {mutation.name} | {mutation.guarantee} | {mutation.text} | {found} | {', '.join(rules)} |", flush=True
        )
    print(f"0 seeds, {missed} with findings: mutations that were not found")
    return int(missed > 0)


def run_seeds(options: argparse.Namespace) -> int:
    """Run seeds, and print those with findings."""
    first, _, last = options.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1) if first else [options.seed or 0]
    mutation = MUTATIONS[options.mutation] if options.mutation else None

    def run(plan: Plan) -> Result:
        return run_plan(plan, mutation, detailed=options.detailed)

    plan_of_seed = several_of if options.several else plan_of
    began, done, failing, virtual = true_time(), 0, 0, 0.0
    for seed in seeds:
        if options.seconds and true_time() - began > options.seconds:
            break
        plan = replace(NAMED[options.plan], seed=seed) if options.plan else plan_of_seed(seed)
        if options.shards > 1:
            plan = with_shards(plan, options.shards)
            if seed % ALONE == 0:
                plan = with_bystanders(plan)
        if options.pushes:
            plan = replace(plan, late_pushes=options.pushes == "late")
        result = run(plan)
        done, virtual = done + 1, virtual + result.seconds
        if done % PROGRESS == 0:
            print(f"{done} seeds, up to {seed}", file=sys.stderr, flush=True)
        if options.digests:
            print(f"seed {seed}: {result.digest} {result.seconds:.1f} s, {result.cpu:.2f} s of CPU, {result.counts}")
        if result.findings:
            failing += 1
            print(f"seed {seed} has {len(result.findings)} findings:")
            print("".join(f"    {finding}\n" for finding in result.findings[:20]), end="", flush=True)
            if options.shrink:
                result = shrink(result, run)
                print(f"shrunk: {sum(step.kind != 'nothing' for step in result.plan.all_steps)} steps are left")
        if options.seed is not None or (result.findings and options.shrink):
            print_story(result)
        if result.findings and not options.keep_going:
            break
    took = true_time() - began
    print(f"{done} seeds, {failing} with findings; {virtual:.0f} s of virtual time in {took:.1f} s")
    return int(failing > 0)


def true_time() -> float:
    """Seconds of a clock that is never simulated."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def print_story(result: Result) -> None:
    """The plan, the story and the findings of a run."""
    print("the plan:")
    for number, plan in enumerate(result.plan.clusters):
        for step in plan.steps:
            if step.kind != "nothing":
                print(f"    {f'p{number}: ' if number else ''}{step}")
    print("the story:")
    for line in result.lines:
        print(f"    {line}")
    print("the findings:" if result.findings else "no findings")
    for finding in result.findings:
        print(f"    {finding}")
