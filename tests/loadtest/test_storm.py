"""`make bench ONLY=storm`: persistent clients return to a cluster."""

import re
from pathlib import Path

import pytest

from flockmq.loadtest.compare import storm
from flockmq.loadtest.compare.storm import Clients, StormError
from tests.conftest import StartBroker


def test_all_clients_return_in_waves(tmp_path: Path) -> None:
    assert storm.main(["--clients", "90", "--online", "40", "--output", str(tmp_path / "out.md")]) == 0
    rows = re.findall(r"^\| (\w.*?) \| ([\d. |]+) \|$", (tmp_path / "out.md").read_text(), re.MULTILINE)
    assert [title for title, _ in rows] == [step.title for step in storm.STEPS]
    assert all(float(figure) > 0 for _, figures in rows for figure in figures.split(" | "))


def test_the_cost_of_events(tmp_path: Path) -> None:
    assert storm.main(["--clients", "60", "--events", "1", "--output", str(tmp_path / "out.md")]) == 0
    rows = re.findall(
        r"^\| (\w.*?) \| ([\d.]+) \S+ \| ([\d.]+) \S+ \|$", (tmp_path / "out.md").read_text(), re.MULTILINE
    )
    assert [title for title, _, _ in rows] == ["nobody reads events", "a client reads all events"]
    assert all(float(figure) > 0 for _, *figures in rows for figure in figures)


@pytest.mark.parametrize("store", ["memory"])
def test_a_refused_client_fails_the_run(start_broker: StartBroker) -> None:
    broker = start_broker({"limits.max_sessions": 1})
    with pytest.raises(StormError, match="has refused a client"):
        Clients(broker.port).connect(range(2), subscribes=True)
