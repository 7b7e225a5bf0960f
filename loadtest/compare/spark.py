"""`python -m flockmq.loadtest.analytics`: the cost of reading the log of messages with Spark, beside Parquet files.

A real node logs messages of a generator into a real Redis. Then a Spark on two cores reads them several times, as a
stream of batches, into nothing (noop) and into Parquet files. The first round warms Java up and is not counted. Goals
are messages per second on two idle cores; on busy cores CPU time is the better measure.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from ..generator.runs import LoadError, publish_load
from ..generator.target import Target, Workload
from .brokers import BrokerError, accepts_clients, run_process, start_on_free_port, wait_until_ready
from .cluster import redis_command, redis_replies

REGISTER = "flockmq.cluster.analytics.source:register"
RUNS = ("log-noop", "log-parquet", "files-noop", "files-parquet")
GOALS = {"log-noop": 1_000_000, "log-parquet": 400_000}
CLIENTS = 200  # publishers, each with its own topic
LOG_BYTES = 16 << 30  # never reached: nothing is trimmed during a measurement
WAITING_BYTES = 1 << 30
Figures = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table; return 0, or 1 if that failed."""
    options = _parse(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="loadtest-") as directory:
            report = measure(options, Path(directory))
    except (BrokerError, LoadError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    text = render(report)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(options: argparse.Namespace, directory: Path) -> Figures:
    """Fill a log and read it.

    Raises:
        BrokerError, LoadError: a program did not start, or failed.
    """
    with redis(directory) as port:
        filled = _fill(port, options.messages, options.payload, directory)
        runs = [run for _ in range(1 + options.rounds) for run in RUNS]
        figures = _query(port, runs, options.trigger_bytes, directory)
    by_run = {run: [one for one in figures if one["run"] == run][1:] for run in RUNS}
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "messages": figures[0]["rows"],
        "published": filled["published"],
        "payload": options.payload,
        "trigger_bytes": options.trigger_bytes,
        "node_us": filled["cpu_us_per_delivery"],
        "runs": by_run,
    }


@contextmanager
def redis(directory: Path) -> Iterator[int]:
    """Run a Redis without persistence while the block lasts; its port."""
    with ExitStack() as stack:

        def attempt(port: int, attempt_stack: ExitStack) -> int:
            command = redis_command(port, directory, save="")
            process = run_process("Redis", command, directory / "redis", os.sched_getaffinity(0))
            wait_until_ready(attempt_stack.enter_context(process), lambda: redis_replies(port))
            return port

        yield start_on_free_port(attempt, stack)


def _fill(redis_port: int, messages: int, payload: int, directory: Path) -> Figures:
    """Have a node log messages, as fast as it accepts them."""
    settings = {"topics": "#", "log_bytes": LOG_BYTES, "max_waiting_bytes": WAITING_BYTES}
    command = [sys.executable, "-m", "flockmq.broker.cli", "serve"]
    command += ["--redis", f"redis://127.0.0.1:{redis_port}/0", "--node-name", "a"]
    command += [word for name, value in settings.items() for word in ("--set", f"analytics.{name}={value}")]
    load = Workload(
        publishers=CLIENTS,
        subscribers=CLIENTS,
        payload=payload,
        count=messages,
        seconds=math.inf,
        backlog=50_000,
        drain_limit=60.0,
    )
    with ExitStack() as stack:

        def attempt(port: int, attempt_stack: ExitStack) -> Target:
            listen = ["--listen", f"127.0.0.1:{port}"]
            node = run_process("node", [*command, *listen], directory / "node", os.sched_getaffinity(0))
            process = attempt_stack.enter_context(node)
            wait_until_ready(process, lambda: accepts_clients(port))
            return Target(port=port, pids=[process.pid])

        return publish_load(start_on_free_port(attempt, stack), load)


def _query(redis_port: int, runs: list[str], trigger_bytes: str, directory: Path) -> list[Figures]:
    where = ["--redis", f"redis://127.0.0.1:{redis_port}", "--directory", str(directory)]
    command = [sys.executable, "-m", "flockmq.loadtest.compare.spark_query", "--register", REGISTER, *where]
    command += ["--trigger-bytes", trigger_bytes, *runs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadError(f"Spark: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def render(report: Figures) -> str:
    """Return the report as Markdown."""
    lines = [
        f"- {report['machine']}; {report['messages']} messages of {report['payload']} bytes, "
        f"{report['trigger_bytes']} a batch, local[2]; medians of {len(report['runs'][RUNS[0]])} rounds",
        "",
        "| from - to | messages/s | goal | CPU us/message: Java | Python | peak MiB: Java | Python |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rates = {}
    for run, rounds in report["runs"].items():
        rates[run] = median(one["rows"] / one["seconds"] for one in rounds)
        cpu = [median(one[f"cpu_s_{kind}"] * 1e6 / one["rows"] for one in rounds) for kind in ("java", "python")]
        peaks = [max(one[f"peak_mib_{kind}"] for one in rounds) for kind in ("java", "python")]
        goal = f"{GOALS[run]:,}" if run in GOALS else ""
        cells = [run, f"{rates[run]:,.0f}", goal, *(f"{one:.2f}" for one in cpu), *(f"{one:.0f}" for one in peaks)]
        lines.append(f"| {' | '.join(cells)} |")
    ratios = [f"{sink}: {rates[f'log-{sink}'] / rates[f'files-{sink}']:.2f}" for sink in ("noop", "parquet")]
    return "\n".join([*lines, "", f"Log against files, as a share of their messages/s: {', '.join(ratios)}"])


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flockmq.loadtest.analytics", description=__doc__)
    parser.add_argument("--messages", type=int, default=4_000_000)
    parser.add_argument("--payload", type=int, default=64, help="bytes of each, at least 32")
    parser.add_argument("--trigger-bytes", default="256m", help="maxBytesPerTrigger")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="also write the table there")
    parser.add_argument("--json", type=Path, help="also write all figures there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
