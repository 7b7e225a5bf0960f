"""/metrics of a real node: the format, and that the figures agree with the table."""

import re
import urllib.request
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.broker.metrics import METRICS
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient
from tests.harness.workers_process import WorkersProcess
from tests.protocol.wire import Wire

pytestmark = pytest.mark.one_process
StartBroker = Callable[..., Broker]
SAMPLE = re.compile(r'([a-z_][a-z0-9_]*)(\{[a-z_]+="[^"\\]*"(?:,[a-z_]+="[^"\\]*")*\})? (-?[0-9.e+-]+)')


def read(broker: Broker) -> dict[str, float]:
    """All samples, after the format has been checked."""
    url = broker.wait_for_log("HTTP server is listening")["listen"]
    with urllib.request.urlopen(f"{url}/metrics", timeout=DEADLINE) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = response.read().decode()
    lines = text.split("\n")
    assert lines.pop() == ""
    samples: dict[str, float] = {}
    for help_line, type_line, sample_line in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        sample = SAMPLE.fullmatch(sample_line)
        assert sample, sample_line
        name = sample[1]
        assert name not in samples
        assert help_line.startswith(f"# HELP {name} ")
        kind = "counter" if name.endswith("_total") else "gauge"
        assert type_line == f"# TYPE {name} {kind}"
        samples[name] = float(sample[3])
    return samples


@pytest.fixture
def watched(start_broker: StartBroker) -> Broker:
    return start_broker({"http.listen": "127.0.0.1:0"})


def test_every_row_is_there(watched: Broker) -> None:
    samples = read(watched)
    for metric in METRICS:
        assert metric.name.replace("_", "").isalnum()
        assert f"flockmq_{metric.name}{'_total' if metric.kind == 'counter' else ''}" in samples
    assert samples["flockmq_info"] == samples["flockmq_ready"] == samples["flockmq_cluster_nodes"] == 1
    assert samples["process_resident_memory_bytes"] == pytest.approx(watched.rss(), rel=0.2)
    assert samples["process_open_fds"] == pytest.approx(watched.open_files(), abs=2)
    assert 0 < samples["process_start_time_seconds"] < 1e10


def test_clients_by_protocol_level_and_drops_of_level_5(watched: Broker) -> None:
    five = SocketClient(watched.port, "five", level=5, properties={"maximum_packet_size": 50})
    four = SocketClient(watched.port, "four", level=4)
    samples = read(watched)
    assert [samples[f"flockmq_clients_mqtt{level}"] for level in ("31", "311", "5")] == [0, 1, 1]
    five.subscribe(("t", 1))
    four.send(Publish("t", bytes(60), 0), Publish("t", bytes(60), 1, packet_id=1), Publish("t", b"x", 1, packet_id=2))
    assert isinstance(four.receive(), Puback) and isinstance(four.receive(), Puback)
    message = five.receive()
    assert isinstance(message, Publish)
    five.send(Puback(message.packet_id, 0x83))
    five.ping()
    five.close()
    four.close()
    until(lambda: read(watched)["flockmq_clients_connected"] == 0)
    samples = read(watched)
    assert samples["flockmq_clients_mqtt5"] == 0
    names = ("too_large", "refused_by_receiver", "expired")
    assert [samples[f"flockmq_messages_{name}_total"] for name in names] == [2, 1, 0]


def test_queues_are_counted(watched: Broker) -> None:
    """Messages of 1 + 9 bytes, which are sent, acknowledged, wait for an absent client, and go with its session."""

    def queues() -> tuple[float, ...]:
        samples = read(watched)
        return tuple(samples[f"flockmq_{name}"] for name in ("queued_messages", "queued_bytes", "inflight_messages"))

    with Wire(watched.port, name="s") as reader, Wire(watched.port, name="p") as writer:
        reader.connect("clean=0").subscribe("t:2")
        writer.connect()
        for packet_id, qos in enumerate((1, 2, 1), 1):
            writer.send(f"publish t 123456789 q{qos} id={packet_id}")
            writer.expect(f"puback {packet_id}" if qos == 1 else f"pubrec {packet_id}")
            if qos == 2:
                writer.send(f"pubrel {packet_id}")
                writer.expect(f"pubcomp {packet_id}")
        for packet_id, qos in enumerate((1, 2, 1), 1):
            reader.expect(f"publish t 123456789 q{qos} id={packet_id}")
        assert queues() == (3, 30, 3)
        reader.send("pubrec 2")
        reader.expect("pubrel 2")
        assert queues() == (3, 20, 3)
        reader.send("puback 1")
        reader.send("pubcomp 2")
        reader.send("pingreq")
        reader.expect("pingresp")
        assert queues() == (1, 10, 1)
        reader.send("disconnect")
        reader.expect(None)
        assert queues() == (1, 10, 1)
        writer.send("publish t 123456789 q1 id=4")
        writer.expect("puback 4")
        assert queues() == (2, 20, 1)
    with Wire(watched.port, name="s") as again:
        again.connect()
        again.send("pingreq")
        again.expect("pingresp")
        assert queues() == (0, 0, 0)


def test_one_of_the_workers_replies_for_all(tmp_path: Path) -> None:
    """Every scrape has the series of each, so that no counter goes back; the rows of a metric are together."""
    workers = WorkersProcess(tmp_path, sync="", arguments=["--http", "127.0.0.1:0"])
    workers.start()
    try:
        url = workers.wait_for_log("HTTP server is listening")["listen"]
        with SocketClient(workers.port, "a"):
            for _ in range(10):  # each is a new connection, to any of them
                with urllib.request.urlopen(f"{url}/metrics", timeout=DEADLINE) as response:
                    text = response.read().decode()
                found = re.findall(r'^flockmq_clients_connected\{node="(.*)"\} (\d)$', text, re.M)
                assert [name for name, _ in sorted(found)] == ["w-1", "w-2"]
                assert sorted(count for _, count in found) == ["0", "1"]
                names = [line.split("{")[0] for line in text.splitlines() if not line.startswith("#")]
                together = [name for name, _ in groupby(names)]
                assert len(together) == len(set(together)) == text.count("# HELP ") == text.count("# TYPE ")
    finally:
        assert workers.stop() == 0
    workers.check()
