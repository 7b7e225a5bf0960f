"""MQTT.js against a node. The scenarios are in scenarios.js; the package comes from the lock file when needed."""

import shutil
from pathlib import Path

import pytest

from tests.clients.packages import node_modules
from tests.harness import nursery
from tests.harness.broker_process import environment
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


def run_scenarios(node_js: str, url: str, level: int, variables: dict[str, str] | None = None) -> None:
    """Run all scenarios of a level.

    Args:
        node_js: the program.
        url: of the node.
        level: of the protocol: 3, 4 or 5.
        variables: more of the environment.
    """
    done = nursery.run(
        [node_js, str(HERE / "scenarios.js"), url, str(level)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment() | (variables or {}),
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("ok ") == (14 if level == 5 else 8)


@pytest.mark.parametrize("level", [3, 4, 5])
def test_scenarios(node_js: str, broker: Broker, level: int) -> None:
    run_scenarios(node_js, f"mqtt://127.0.0.1:{broker.port}", level)
