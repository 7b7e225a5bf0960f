"""`make bench ONLY=growth`: the cost of a message while something grows."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq.loadtest.compare import growth
from flockmq.loadtest.compare.growth_plot import Panel, plot
from tests.conftest import StartBroker
from tests.harness.socket_client import SocketClient

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.soak
def test_tables_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On real brokers, with small numbers."""
    small = [replace(each, counts=(2, 4) if each.title != "nodes" else (1, 2)) for each in growth.GROWTHS]
    monkeypatch.setattr(growth, "GROWTHS", small)
    assert growth.main(["--quick", "--output", str(tmp_path / "out.md"), "--plot", str(tmp_path / "out.svg")]) == 0
    text = (tmp_path / "out.md").read_text()
    assert text in capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == len(small) + sum(len(each.lines) for each in small)
    drawn = ElementTree.parse(tmp_path / "out.svg").getroot()
    assert len(drawn.findall(f".//{SVG}polyline")) == sum(len(each.lines) for each in small)


@pytest.mark.parametrize("store", ["memory"])
def test_a_node_is_prepared(start_broker: StartBroker) -> None:
    broker = start_broker()
    growth._retain(broker.port, 2500)
    growth._subscribe(broker.port, 1500)
    with SocketClient(broker.port, "reader") as reader:
        reader.subscribe(("retained/#", 0), ("other/#", 0))
        assert sum(isinstance(packet, Publish) for packet in reader.ping()) == 2500
    with SocketClient(broker.port, "subscribes 0", clean_start=False) as client:
        assert client.connack is not None and client.connack.session_present
        client.send(Publish("other/499/x/1499", b"x"))
        assert [packet.payload for packet in client.ping() if isinstance(packet, Publish)] == [b"x"]


def test_a_plot_begins_at_zero_and_ends_above_the_highest_value() -> None:
    panel = Panel("a < b", [0, 10, 1000], {"one": [0.5, 0.7, 1.3]})
    drawn = ElementTree.fromstring(plot([panel]))
    labels = [text.text for text in drawn.iter(f"{SVG}text")]
    assert labels[0] == "CPU µs per message by a < b"
    assert {"0", "2", "1,000", "one"} <= set(labels)
