"""Pipes of a node alone: the log over HTTP, the position in a file."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from flockmq.broker.cli import main
from flockmq.broker.client.log_client import LogClient
from tests.connect.endpoint import Endpoint
from tests.connect.pipe_file import Process, listed, once
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.database_processes import PostgreSqlProcess
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

SETTINGS = {"analytics.topics": "a/#", "http.listen": "127.0.0.1:0"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, "sqlite", SETTINGS).start()
    yield process
    process.close()


def publish(node: BrokerProcess, first: int, count: int) -> list[bytes]:
    payloads = [b"%d" % number for number in range(first, first + count)]
    with SocketClient(node.port, "device") as client:
        for number, payload in enumerate(payloads, 1):
            client.send(Publish(f"a/{number % 3}", payload, qos=1, packet_id=number))
            assert isinstance(client.receive(), Puback)
    return payloads


def file_of(directory: Path, node: BrokerProcess, target: str, options: dict[str, object]) -> Path:
    path = directory / "pipes.toml"
    head = [f'log = "{HttpClient(node).url}"', 'every = "10 ms"', "[[pipes]]", 'name = "fleet"', f"[pipes.{target}]"]
    path.write_text("\n".join([*head, *listed(options), ""]))
    return path


def test_postgresql(node: BrokerProcess, postgresql: PostgreSqlProcess, table: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, node, "postgresql", {"url": postgresql.url, "table": table})
    payloads = publish(node, 0, 20)
    process = Process(path)
    process.wait_for(b"committed")
    process.kill()
    payloads += publish(node, 20, 20)
    node.kill()
    node.start()
    once(file_of(tmp_path, node, "postgresql", {"url": postgresql.url, "table": table}))
    found = Counter(bytes(payload) for (payload,) in postgresql.rows(f"select payload from {table}"))
    assert found == Counter(payloads)
    postgresql.rows("delete from flockmq_positions where pipe = 'fleet'")


def test_a_batch_that_was_not_ended(
    node: BrokerProcess, endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is sent again with the same ids, without messages that are newer; and only one process has the pipe."""
    path = file_of(tmp_path, node, "webhook", {"url": endpoint.url})
    payloads = publish(node, 0, 10)
    endpoint.stop_at(5)
    process = Process(path)
    assert endpoint.stopped.wait(30)
    second = Process(path)
    second.wait_for(b"another process has the pipe")
    second.kill()
    process.kill()
    endpoint.go_on()
    payloads += publish(node, 10, 10)
    once(path)
    ids: dict[int, set[str]] = {}
    for event in endpoint.events:
        ids.setdefault(event["data"], set()).add(event["id"])
    assert set(ids) == {int(payload) for payload in payloads}
    assert all(len(each) == 1 for each in ids.values())
    position = tmp_path / "fleet.position.json"
    assert json.loads(position.read_text())["planned"] is None
    position.write_text("{")
    assert main(["connect", str(path), "--once"]) == 1
    assert "the position of the pipe is damaged" in capsys.readouterr().err


def test_an_end(node: BrokerProcess, tmp_path: Path) -> None:
    """A reply ends at the position `to`, though the log has gone on."""
    client = HttpClient(node)
    publish(node, 0, 5)
    reader = LogClient(client.url)
    until(lambda: list(reader.request(None))[-1].position)
    (*_, last) = reader.request(None)
    publish(node, 5, 5)
    parts = list(reader.request(None, to=last.position))
    assert sum(part.rows.num_rows for part in parts) == 5
    assert parts[-1].is_end and parts[-1].position == last.position
    (*_, rest) = reader.request(last.position)
    assert rest.position != last.position


def test_events_of_clients_as_webhooks(endpoint: Endpoint, tmp_path: Path) -> None:
    """Each event once, also of clients that came while nothing read the log."""
    settings = {**SETTINGS, "analytics.topics": "$SYS/broker/events/clients/+/+"}
    node = BrokerProcess(tmp_path, "sqlite", settings).start()
    try:
        for number in range(3):
            SocketClient(node.port, f"device/{number}").close()
        path = file_of(tmp_path, node, "webhook", {"url": endpoint.url})
        wanted = 'name = "fleet"\nfilter = "$SYS/broker/events/clients/+/connected"'
        path.write_text(path.read_text().replace('name = "fleet"', wanted))

        def all_sent() -> bool:
            once(path)
            return len(endpoint.events) >= 3

        until(all_sent)
        assert sorted((event["subject"], event["data"]["client_id"]) for event in endpoint.events) == [
            (f"$SYS/broker/events/clients/device%2F{number}/connected", f"device/{number}") for number in range(3)
        ]
        once(path)
        assert len(endpoint.events) == 3
    finally:
        node.close()
