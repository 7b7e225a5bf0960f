"""MQTT.js against a node. The scenarios are in scenarios.js; the package comes from the lock file when needed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.packages import node_modules
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE

# A client of another maker sees no difference between a store in memory and one on disk.
pytestmark = pytest.mark.parametrize("store", ["sqlite", "cluster"])

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node_js() -> str:
    """The program `node`, with MQTT.js installed."""
    node_modules()
    return str(shutil.which("node"))


@pytest.mark.parametrize("level", [3, 4, 5])
def test_scenarios(node_js: str, broker: Broker, level: int) -> None:
    done = subprocess.run(
        [node_js, str(HERE / "scenarios.js"), f"mqtt://127.0.0.1:{broker.port}", str(level)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("ok ") == (13 if level == 5 else 8)
