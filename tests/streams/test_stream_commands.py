"""The commands that read the log of messages: `flockmq sub --since`, `flockmq replay`."""

import json
import subprocess
import sys

from flockmq.broker.storage.log_segments import segments
from tests.conftest import StartLogging
from tests.harness.broker_process import environment, until
from tests.harness.deadline import DEADLINE
from tests.harness.logs import Logging, OneNode, logged_rows
from tests.harness.socket_client import SocketClient
from tests.streams.test_streams import EVERYTHING, numbers, publish


def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of `flockmq`."""
    result = subprocess.run(
        [sys.executable, "-m", "flockmq.broker.cli", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=DEADLINE,
    )
    assert result.returncode == status, result.stderr
    return result


def where(nodes: Logging) -> list[str]:
    """The flags that name the log."""
    if isinstance(nodes, OneNode):
        return ["--store", f"sqlite:{nodes.directory / 'flockmq.db'}"]
    return ["--redis", nodes.url()]


def test_sub_since_prints_what_was(start_logging: StartLogging) -> None:
    nodes = start_logging(EVERYTHING, nodes="a")
    publish(SocketClient(nodes["a"].port, "writer"), "site/1", *numbers(0, 20))
    since = ["--since", "10m", "-t", "site/#", "-q", "1", "-C", "20"]
    assert run("sub", "-p", str(nodes["a"].port), *since).stdout.split() == [str(number) for number in range(20)]


def test_replay_reads_the_log_of_a_node_that_runs(start_logging: StartLogging) -> None:
    nodes = start_logging(EVERYTHING, nodes="a")
    writer = SocketClient(nodes["a"].port, "writer")
    for qos in range(3):
        publish(writer, f"site/{qos}", *numbers(0, 10), qos=qos)
        publish(writer, "other", b"other", qos=qos)
    until(lambda: len(logged_rows(nodes)) == 33)
    chosen = ["--since", "1 h ago", "--filter", "site/#"]
    shown = run("replay", *where(nodes), *chosen, "--dry-run", "--json").stdout
    lines = [json.loads(line) for line in shown.splitlines()]
    assert [(line["topic"], line["payload"]) for line in lines] == [
        (f"site/{qos}", str(number)) for qos in range(3) for number in range(10)
    ]
    to = f"mqtt://127.0.0.1:{nodes['a'].port}"
    told = run("replay", *where(nodes), *chosen, "--speed", "max", "--topic-prefix", "again/", "--to", to, "--json")
    assert json.loads(told.stdout)["acknowledged"] == 20
    until(lambda: len(logged_rows(nodes)) == 63)
    again = [row.payload for row in logged_rows(nodes) if row.topic.startswith("again/")]
    assert sorted(again) == sorted(numbers(0, 10) * 3)


def test_replay_reports_what_was_trimmed(start_logging: StartLogging) -> None:
    nodes = start_logging({**EVERYTHING, "analytics.log_bytes": 1 << 20}, nodes="a")
    writer = SocketClient(nodes["a"].port, "writer")
    publish(writer, "t", *[b"%d" % number + b"x" * 100_000 for number in range(30)])
    told = run("replay", *where(nodes), "--since", "1 h ago", "--dry-run", "--json")
    payloads = [json.loads(line)["payload"] for line in told.stdout.splitlines()]
    assert 5 < len(payloads) < 12 and payloads[-1].startswith("29x")
    assert "were trimmed" in told.stderr
    if isinstance(nodes, OneNode):
        assert sum(segment.path.stat().st_size for segment in segments(nodes.log_folder)) <= 1 << 20


def test_replay_without_a_log_names_the_remedy(start_logging: StartLogging) -> None:
    nodes = start_logging(nodes="a")
    told = run("replay", *where(nodes), "--since", "1 h ago", "--count", status=1)
    assert "analytics.topics" in told.stderr
    both = run("replay", "--store", "sqlite:x", "--redis", "redis://h", "--since", "1 h ago", status=2)
    assert "exclude each other" in both.stderr
