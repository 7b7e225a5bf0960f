"""Owns: `make soak`. Runs the long forms, three at a time, and writes their record into deploy/docs/records/.

`python tests/soak.py --seconds 600 [PART ...]`. The record of a day is one file: a second run on that day replaces the
lines of its parts. A part that fails does not stop the others; the exit status is then 1.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "deploy" / "docs" / "records"
FUZZERS = ("packets", "connection", "websocket", "nodes")
KILLS = "tests/faults/test_cluster_random_kills.py tests/faults/test_shared_random_kills.py"
PYTEST = "-m pytest -m soak -q -s --timeout 0"
# The command of each part, the longest first: of Python, unless it ends with .sh. {seconds}: of the command line.
PARTS = {
    "sanitizers": "tests/sanitize.sh",
    "random kills": f"{PYTEST} {KILLS}",
    "faults": f"{PYTEST} --ignore {KILLS.replace(' ', ' --ignore ')} tests/faults tests/storage",
    "simulation": f"{PYTEST} tests/simulation",
    "Spark and load": f"{PYTEST} tests/analytics tests/loadtest tests/deploy/test_tutorials.py",
    "memory": f"{PYTEST} tests/protocol",
    "malformed packets": f"{PYTEST} tests/security",
    **{f"fuzz {name}": f"tests/fuzz/fuzz_{name}.py --seconds {{seconds}} --keep" for name in FUZZERS},
}
TIMES = {"random kills": 3}  # an hour in two files, half an hour each; other parts have the seconds once
# Amounts that libFuzzer, pytest and tests print at the start of a line, after pytest's dots and letters.
AMOUNTS = re.compile(r"[.sFE= ]*(?:Done |soak: )?\d+ [a-z]")
UNITS = (
    "kills|seeds|messages|runs|malformed packets|slow connections|connects|groups|aliases|passed|failed|errors?|skipped"
)
AMOUNT = re.compile(rf"(\d+) ({UNITS})\b")
INTRODUCTION = """\
# The long forms, {day}

For developers before a release, and for readers who ask how long FlockMQ has been tried. `make soak` ran these parts,
three at a time. [FAULTS.md](../FAULTS.md) and [SIMULATION.md](../SIMULATION.md) describe the faults.

"""
HEAD = "| Part | Command | Duration | Amount | Result | Commit |\n| --- | --- | --- | --- | --- | --- |\n"


def count(line: str, amounts: Counter[str]) -> None:
    """Add what a line of output counts; a line with `so far` is part of a later one."""
    if AMOUNTS.match(line) and "so far" not in line:
        for number, unit in AMOUNT.findall(line):
            amounts[unit] += int(number)


def record_of(day: date, folder: Path = RECORDS) -> Path:
    """The record of a day; a new one has no lines yet."""
    path = folder / f"soak-{day}.md"
    if not path.exists():
        path.write_text(INTRODUCTION.format(day=day) + HEAD)
    return path


def with_row(text: str, part: str, cells: list[str]) -> str:
    """A record with another line for a part. Lines are in the order of PARTS, then unknown parts."""
    introduction, _, lines = text.partition(HEAD)
    rows = {line.split("|")[1].strip(): line for line in lines.splitlines()}
    rows[part] = f"| {' | '.join([part, *cells])} |"
    order = [*(name for name in PARTS if name in rows), *(name for name in rows if name not in PARTS)]
    return introduction + HEAD + "".join(f"{rows[name]}\n" for name in order)


def run(part: str, seconds: int, more: str) -> tuple[list[str], bool]:
    """Run a part, its command with `more`, and show its output. Returns the cells of its line; whether it passed."""
    command = f"{PARTS[part].format(seconds=seconds)} {more}".strip()
    words = command.split() if PARTS[part].endswith(".sh") else [sys.executable, *command.split()]
    limit = {"FLOCKMQ_TEST_SECONDS": str(seconds * TIMES.get(part, 1))} if "pytest" in command else {}
    shown = " ".join([*(f"{name}={value}" for name, value in limit.items()), command])
    print(f"--- {part}: {shown}", flush=True)
    began = time.monotonic()
    amounts: Counter[str] = Counter()
    with subprocess.Popen(
        words, cwd=ROOT, env=os.environ | limit, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{part}: {line}", end="", flush=True)
            count(line, amounts)
    minutes, rest = divmod(round(time.monotonic() - began), 60)
    amount = ", ".join(f"{number} {unit}" for unit, number in amounts.items())
    result = "passed" if process.returncode == 0 else f"**failed**, status {process.returncode}"
    return [f"`{shown}`", f"{minutes}:{rest:02} min", amount, result], process.returncode == 0


def main() -> int:
    """Run the parts that the command line names, or all."""
    parser = argparse.ArgumentParser(description="Run the long forms and keep their record.")
    parser.add_argument("--seconds", type=int, default=600, help="of each part that has no other end")
    parser.add_argument("--more", default="", help="more arguments of the commands, in one word")
    parser.add_argument("--at-once", type=int, default=3, help="parts that run at the same time")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of: {', '.join(PARTS)}; by default all")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    writing = Lock()
    path = record_of(date.today())

    def record(part: str) -> bool:
        cells, passed = run(part, options.seconds, options.more)
        with writing:
            path.write_text(with_row(path.read_text(), part, [*cells, commit]))
        return passed

    with ThreadPoolExecutor(options.at_once) as pool:
        good = all(list(pool.map(record, options.parts or PARTS)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
