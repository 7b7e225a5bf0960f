"""`python -m flockmq.loadtest.bench`: FlockMQ compared with other brokers, as Markdown with goals.

A run starts a fresh broker, loads it and stops it. Rounds alternate between the brokers (A B C A B C ...). The tables
hold medians: of each broker's figures, and of the ratios within a round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from ..generator.cost import Figures
from ..generator.runs import LoadError, connect_load, find_faults, hold_connections, publish_load, take_over_load
from ..generator.target import IdleLoad, Load, ReconnectLoad, TakeOverLoad, Target, WillsLoad, Workload
from ..generator.wills import delayed_wills_load
from . import aedes, micro
from .brokers import ROOT, BrokerError, mosquitto_version, placed, start
from .cluster import PLACES, redis_version, start_cluster
from .cluster_scenarios import CLUSTER, LOGS
from .scenarios import SINGLE, Goal, Row, Scenario, Table

SCENARIOS = (*SINGLE, *CLUSTER, *LOGS)
RUNS: dict[str, tuple[Callable[[Target, Any], Figures], type[Load]]] = {
    "publish": (publish_load, Workload),
    "hold": (hold_connections, IdleLoad),
    "connect": (connect_load, ReconnectLoad),
    "take-over": (take_over_load, TakeOverLoad),
    "wills": (delayed_wills_load, WillsLoad),
}
CORES = {"one": False, "each": True}  # --cores: the value of Scenario.apart
ALIASES = {
    name: [scenario.name for scenario in scenarios]
    for name, scenarios in (("single", SINGLE), ("cluster", CLUSTER), ("log", LOGS))
}
STALL_SHARE = 0.1  # a run is repeated once if its generator stood still for a larger part

# figures by broker, one per round; a failed round holds {"failure": reason}
Results = dict[str, list[Figures]]


def main(arguments: list[str] | None = None) -> int:
    """Measure the selected scenarios and print the tables; return 0, or 1 if there were none."""
    options = _parse(arguments)
    scenarios = [_adapted(scenario, options) for scenario in SCENARIOS if _is_wanted(scenario.name, options.only)]
    rounds, seconds = (1, min(options.seconds, 1.0)) if options.quick else (options.rounds, options.seconds)
    report: dict[str, Any] = {
        "machine": describe_machine(scenarios),
        "cores": options.cores or "",
        "rounds": rounds,
        "seconds": seconds,
        "results": {scenario.name: measure(scenario, rounds, seconds) for scenario in scenarios},
        "micro": micro.run(options.quick) if _is_wanted("micro", options.only) else [],
    }
    text = render(report, scenarios)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if scenarios or report["micro"] else 1


def measure(scenario: Scenario, rounds: int, seconds: float) -> Results:
    """Run one scenario `rounds` times for `seconds` each, on all its brokers in turn."""
    results: Results = {broker: [] for broker in scenario.brokers}
    for number in range(1, rounds + 1):
        for broker in scenario.brokers:
            last = results[broker][-1] if results[broker] else {}
            if last.get("missing"):  # it did not start in the round before
                results[broker].append(last)
                continue
            print(f"{scenario.name} {number}/{rounds} {broker}", file=sys.stderr, flush=True)
            figures = _run(scenario, broker, seconds)
            if figures.get("stalled_s", 0.0) > STALL_SHARE * seconds:
                figures = _run(scenario, broker, seconds)
            results[broker].append(figures)
    return results


def _run(scenario: Scenario, broker: str, seconds: float) -> Figures:
    own_cores, broker_cores = choose_cores(scenario.apart)
    run = _run_in_cluster if broker in PLACES else _run_alone
    try:
        with placed(own_cores):
            figures = run(scenario, broker, seconds, broker_cores)
    except BrokerError as error:
        return {"failure": str(error), "missing": True}
    except (LoadError, ConnectionError, TimeoutError) as error:
        return {"failure": str(error)}
    figures.pop("latencies", None)
    if figures.get("delivered_per_s"):
        figures["us_per_delivery"] = 1e6 / figures["delivered_per_s"]
    return figures


def _run_alone(scenario: Scenario, broker: str, seconds: float, cores: set[int]) -> Figures:
    run, load = RUNS[scenario.run]
    with start(broker, scenario.store, cores, scenario.saturated) as running:
        target = Target(port=running.port, pids=[running.pid], level=scenario.level)
        return run(target, load(**{"seconds": seconds, **scenario.parameters}))


def _run_in_cluster(scenario: Scenario, broker: str, seconds: float, cores: set[int]) -> Figures:
    place = PLACES[broker]
    run, load = RUNS[scenario.run]
    with start_cluster(place.kind, cores, scenario.saturated) as cluster:
        target = Target(
            port=cluster.ports[place.subscribe_at],
            publish_port=cluster.ports[place.publish_at],
            groups=cluster.groups,
            counts=cluster.counts if scenario.counts else None,
        )
        return run(target, load(**{"seconds": seconds, **scenario.parameters, **place.parameters}))


def choose_cores(apart: bool) -> tuple[set[int], set[int]]:
    """Return the generator's cores and the broker's, of those this process may use; core 0 is likely to be busy."""
    allowed = sorted(os.sched_getaffinity(0))
    if apart and len(allowed) > 1:
        return {allowed[-1]}, {allowed[-2]}
    return {allowed[-1]}, {allowed[-1]}


def render(report: dict[str, Any], scenarios: list[Scenario]) -> str:
    """Return the report as Markdown."""
    lines = [f"- {name}: {value}" for name, value in report["machine"].items()]
    lines.append(f"- {report['rounds']} rounds of {report['seconds']:g} s, payload 64 bytes; medians")
    if cores := report.get("cores"):
        lines.append(f"- brokers and generator: {'one core' if cores == 'one' else 'a core each'}")
    tables = {scenario.table: [other for other in scenarios if other.table == scenario.table] for scenario in scenarios}
    for table in [table for table in tables if not table.title]:
        lines += _table_lines(table, tables.pop(table), report["results"])
    if report["micro"]:
        lines += ["", "| in one process | unit | FlockMQ | goal | reached |", _line(["---"] * 5)]
        lines += [_line(_micro_cells(result)) for result in report["micro"]]
    for table, members in tables.items():
        lines += ["", f"## {table.title}", "", table.preface, *_table_lines(table, members, report["results"])]
    return "\n".join([*lines, "", *_notes(scenarios, report["results"])]).rstrip()


def values_of(results: Results, broker: str, row: Row) -> list[float | None]:
    """Return a row's figure for every round, None where a round has none."""
    rounds = results.get(broker, [])
    return [figures[row.figure] * row.scale if row.figure in figures else None for figures in rounds]


def ratio_of(results: Results, other: str, row: Row, own: str = "FlockMQ") -> float | None:
    """Return the median over the rounds of `own`'s figure divided by another broker's."""
    pairs = zip(values_of(results, own, row), values_of(results, other, row), strict=False)
    ratios = [value / peer for value, peer in pairs if value is not None and peer]
    return median(ratios) if ratios else None


def is_reached(results: Results, row: Row, goal: Goal, own: str = "FlockMQ") -> bool | None:
    """Return whether the goal is reached, None if it was not measured."""
    own = goal.whose or own
    if goal.above:
        pairs = zip(values_of(results, own, row), values_of(results, goal.of, row), strict=False)
        value = _median([a - b if a is not None and b is not None else None for a, b in pairs])
    else:
        value = ratio_of(results, goal.of, row, own) if goal.of else _median(values_of(results, own, row))
    return None if value is None else value <= goal.limit


def _table_lines(table: Table, scenarios: list[Scenario], results: dict[str, Results]) -> list[str]:
    own = table.columns[0]
    ratios = [f"{own} / {other}" for other in table.ratios]
    heads = ["", "unit", *table.columns, *ratios, "goal", "reached", *filter(None, [table.per_second])]
    lines = ["", _line(heads), _line(["---"] * len(heads))]
    for scenario in scenarios:
        lines += [_line(_cells(scenario, row, results[scenario.name])) for row in scenario.rows]
    return lines


def _cells(scenario: Scenario, row: Row, results: Results) -> list[str]:
    table, first = scenario.table, scenario.brokers[0]
    own = _median(values_of(results, first, row))
    cells = [
        scenario.label + row.label,
        row.unit,
        *(_number(_median(values_of(results, broker, row))) for broker in table.columns),
        *(_number(ratio_of(results, other, row, table.columns[0])) for other in table.ratios),
        ", ".join(_goal_text(goal) for goal in row.goals) or "-",
        _reached_text({_goal_text(goal): is_reached(results, row, goal, first) for goal in row.goals}),
    ]
    if table.per_second:
        cells.append(f"{1e6 / own:,.0f}" if own and row.per_second else "-")
    return cells


def _micro_cells(result: dict[str, Any]) -> list[str]:
    limit = result["limit"]
    if "skipped" in result:
        return [result["name"], result["unit"], f"skipped: {result['skipped']}", _limit_text(limit), "?"]
    reached = "-" if limit is None else ("yes" if result["value"] <= limit else "no")
    return [result["name"], result["unit"], _number(result["value"]), _limit_text(limit), reached]


def _limit_text(limit: float | None) -> str:
    return "-" if limit is None else f"≤ {limit:g}"


def _goal_text(goal: Goal) -> str:
    return goal.text or (f"≤ {goal.limit:g} x {goal.of}" if goal.of else f"≤ {goal.limit:g}")


def _reached_text(goals: dict[str, bool | None]) -> str:
    """Return "yes", the missed goals, or "?" if unknown."""
    missed = [text for text, reached in goals.items() if reached is False]
    if missed:
        return f"no: {', '.join(missed)}" if len(goals) > 1 else "no"
    if not goals:
        return "-"
    return "yes" if all(goals.values()) else "?"


def _notes(scenarios: list[Scenario], results: dict[str, Results]) -> list[str]:
    """Return a line for each broker and fault."""
    names: dict[str, dict[str, None]] = {}
    for scenario in scenarios:
        for broker, rounds in results[scenario.name].items():
            for figures in rounds:
                faults = [figures["failure"]] if "failure" in figures else find_faults(figures)
                for fault in faults:
                    names.setdefault(f"{broker}: {fault}", {})[scenario.name] = None
    saturated = [scenario.name for scenario in scenarios if scenario.saturated]
    notes = [f"- {fault} ({', '.join(places)})" for fault, places in names.items()]
    return [*([f"- brokers with SCHED_BATCH: {', '.join(saturated)}"] if saturated else []), *notes]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def describe_machine(scenarios: list[Scenario]) -> dict[str, str]:
    """Return the conditions of the figures: machine, versions, commit, date."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    brokers = {broker for scenario in scenarios for broker in scenario.brokers}
    kinds = {PLACES[broker].kind for broker in brokers if broker in PLACES}
    machine = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "--short", "HEAD") + (", changed since" if _git("status", "--porcelain") else ""),
        "CPU": f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Mosquitto": mosquitto_version(),
    }
    if kinds and "Mosquitto" not in brokers:
        del machine["Mosquitto"]
    if kinds:
        machine["Redis"] = redis_version()
    if "Aedes" in kinds:
        machine["Aedes"] = aedes.versions()
    return machine


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _adapted(scenario: Scenario, options: argparse.Namespace) -> Scenario:
    if options.cores:
        apart = CORES[options.cores]
        scenario = replace(scenario, apart=apart, saturated=scenario.saturated and not apart)
    if options.saturated and not scenario.apart:
        scenario = replace(scenario, saturated=True)
    if not options.quick or not scenario.quick:
        return scenario
    label = f"{scenario.label} (quick: {', '.join(f'{value} {name}' for name, value in scenario.quick.items())})"
    return replace(scenario, parameters={**scenario.parameters, **scenario.quick}, label=label)


def _is_wanted(name: str, only: list[str]) -> bool:
    return not only or name in only or any(name in ALIASES.get(alias, []) for alias in only)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flockmq.loadtest.bench", description=__doc__)
    names = [*ALIASES, *(scenario.name for scenario in SCENARIOS), "micro"]
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--quick", action="store_true", help="one round of one second, fewer idle connections")
    parser.add_argument("--saturated", action="store_true", help="SCHED_BATCH for every broker on the generator's core")
    parser.add_argument(
        "--cores",
        choices=CORES,
        help="brokers and generator share one core, or have a core each [each scenario's own choice]",
    )
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="also write the tables to a file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures of every round")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    return options


if __name__ == "__main__":
    sys.exit(main())
