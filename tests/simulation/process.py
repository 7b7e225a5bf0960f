"""Runs the command in a process with simulated clocks: pytest's own process needs true ones."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.simulation.clock import environment

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = re.compile(r"^(\d+) seeds, (\d+) with findings", re.M)


class Simulated(NamedTuple):
    """The output of a process."""

    output: str
    seeds: int
    failing: int

    @property
    def digests(self) -> list[str]:
        """The digest of each history, in order."""
        return re.findall(r"^seed \d+: ([0-9a-f]{32}) ", self.output, re.M)


def simulate(*arguments: str) -> Simulated:
    """Run `python -m tests.simulation` with these arguments. Raises AssertionError if it fails itself."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    found = SUMMARY.search(done.stdout)
    assert found is not None, f"{' '.join(arguments)}: {done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return Simulated(done.stdout, int(found[1]), int(found[2]))
