"""Packages of npm that tests use, installed by the lock file when they are needed."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.deadline import DEADLINE

HERE = Path(__file__).parent


def node_modules() -> Path:
    """Where they are; a test that can't have them is skipped."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        pytest.skip("node and npm are not installed (deploy/system-packages.sh test)")
    lock, installed = HERE / "package-lock.json", HERE / "node_modules" / ".installed"
    with (HERE / "package.json").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # other test processes wait for the process that installs
        if not installed.exists() or installed.read_bytes() != lock.read_bytes():
            done = subprocess.run(
                [npm, "ci", "--no-audit", "--no-fund"], cwd=HERE, capture_output=True, text=True, timeout=DEADLINE
            )
            assert done.returncode == 0, done.stderr
            installed.write_bytes(lock.read_bytes())
    return installed.parent
