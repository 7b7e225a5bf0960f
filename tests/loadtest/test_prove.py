"""`flockmq prove`: it finds nothing where a broker keeps its promises, and finds it where one is broken."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from flockmq.broker.cli import main
from flockmq.loadtest.compare.brokers import find_mosquitto
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import (
    Acknowledged,
    Connected,
    Connecting,
    Delivered,
    History,
    Published,
    Subscribed,
    Taken,
)
from flockmq.loadtest.prove.report import story
from tests.harness.ports import free_port

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


def prove(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    status = main(["prove", *options])
    output = capsys.readouterr()
    return status, output.out, output.err


def test_a_node_keeps_its_promises(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, text, errors = prove(
        capsys, "--seconds", "4", "--faults", "kill,cut", "--report", str(tmp_path / "new" / "it")
    )
    assert (status, errors) == (0, ""), text
    assert text.startswith("no finding in ")
    assert text.count("\nkept ") == len(checker.RULES)
    report = json.loads((tmp_path / "new" / "it" / "report.json").read_text())
    assert report["messages"] > 0 and report["faults"]
    assert [promise["findings"] for promise in report["promises"]] == [0] * len(checker.RULES)
    assert '<td class="kept">kept' in (tmp_path / "new" / "it" / "report.html").read_text()
    assert "is ready" in (tmp_path / "new" / "it" / "flockmq.log").read_text()


@needs_redis
def test_a_cluster_keeps_its_promises(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = prove(capsys, "flockmq-cluster", "--seconds", "4", "--json")
    report = json.loads(text)
    assert status == 0, report["promises"]
    assert len(report["commands"]) == 3


@needs_mosquitto
def test_mosquitto_is_proved_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Version 2.0.11 changes the order of messages when a session is resumed, so that rule is left out."""
    _, text, _ = prove(capsys, "mosquitto", "--seconds", "1", "--faults", "none", "--json")
    report = json.loads(text)
    assert report["messages"] > 1
    assert {promise["rule"] for promise in report["promises"] if promise["findings"]} <= {"I3"}


def test_a_broker_that_keeps_nothing_is_found_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its state is in memory, and it is killed: sessions and acknowledged messages are lost."""
    address = f"127.0.0.1:{free_port()}"
    start = f"{sys.executable} -m flockmq.broker.cli serve --listen {address} --store memory"
    options = ("--start", start, "--address", address, "--faults", "kill", "--seconds", "5", "--report", str(tmp_path))
    status, text, _ = prove(capsys, *options)
    assert status == 3
    assert f"broken  {checker.RULES['I8']}" in text
    report = json.loads((tmp_path / "report.json").read_text())
    (sessions,) = [promise for promise in report["promises"] if promise["rule"] == "I8"]
    history = sessions["examples"][0]["history"]
    assert any("session_present=False" in line for line in history)
    assert any("fault" in line and "kill" in line for line in history)
    assert "session_present=False" in (tmp_path / "report.html").read_text()


def test_a_broker_that_ends_at_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = prove(capsys, "--start", "sh -c 'echo no license; exit 7'", "--address", "127.0.0.1:1")
    assert status == 1
    assert "node 1 has ended at its start" in errors
    assert "no license" in errors


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--start", "true"], "each --start needs its --address"),
        (["--start", "true", "--address", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["--faults", "kill,rain"], "'rain' is none of kill, pause, cut, stall, none"),
        (["mosquitto", "--start", "true", "--address", "a:1"], "a broker by name, or --start, not both"),
        (["--levels", "3"], "'3' is none of 4, 5, 4,5"),
    ],
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], options: list[str], reason: str) -> None:
    assert main(["prove", *options]) == 2
    assert reason in capsys.readouterr().err


def test_the_history_of_a_finding_is_short() -> None:
    history = History()
    for client in ("p", "s", "other"):
        history.add(Connecting(client, False))
        history.add(Connected(client, False, False))
    history.add(Subscribed("s", "t/#", 1))
    for number in range(100):
        payload = b"p/%03d" % number
        history.add(Published("p", "t/0", payload, 1, packet_id=number + 1))
        history.add(Acknowledged("p", payload, "PUBACK", number + 1))
        if number != 50:
            history.add(Delivered("s", "t/0", payload, 1, number + 1, dup=False, retain=False))
            history.add(Taken("s", payload))
    (finding,) = checker.check(history)
    assert finding == "I1 PUBACK came for b'p/050', s never got it"
    assert [line.split()[1:3] for line in story(history, finding)] == [["p", "published"], ["p", "acknowledged"]]


def test_a_node_that_ends_by_itself_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is started again, so that the run goes on."""
    address = f"127.0.0.1:{free_port()}"
    store = f"sqlite:{tmp_path / 'flockmq.db'}"
    serve = f"exec {sys.executable} -m flockmq.broker.cli serve --listen {address} --store {store}"
    start = tmp_path / "start.sh"
    start.write_text(f"(sleep 3; kill -9 $$) & {serve}\n")
    options = ("--start", f"sh {start}", "--address", address, "--faults", "cut", "--seconds", "6", "--json")
    status, text, _ = prove(capsys, *options)
    assert status == 3
    (found,) = [promise for promise in json.loads(text)["promises"] if promise["rule"] == "I0"]
    assert "has ended by itself" in found["examples"][0]["finding"]
