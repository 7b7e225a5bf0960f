"""MQTT.js against a node. The scenarios are in scenarios.js; the package comes from the lock file when needed."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster_process import Broker

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node_js() -> str:
    """The program `node`, with MQTT.js installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed: MQTT.js is not tried (deploy/system-packages.sh test)")
    lock, installed = HERE / "package-lock.json", HERE / "node_modules" / ".installed"
    with (HERE / "package.json").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # other test processes wait for the one that installs
        if not installed.exists() or installed.read_bytes() != lock.read_bytes():
            done = subprocess.run(
                [npm, "ci", "--no-audit", "--no-fund"], cwd=HERE, capture_output=True, text=True, timeout=240
            )
            assert done.returncode == 0, done.stderr
            installed.write_bytes(lock.read_bytes())
    return node


@pytest.mark.parametrize("level", [3, 4])
def test_scenarios(node_js: str, broker: Broker, level: int) -> None:
    done = subprocess.run(
        [node_js, str(HERE / "scenarios.js"), f"mqtt://127.0.0.1:{broker.port}", str(level)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("ok ") == 8
