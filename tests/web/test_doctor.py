"""`flockmq doctor`, and GET /doctor."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq.broker import doctor
from flockmq.broker.admin.http.tokens import add
from flockmq.broker.config.load import load
from flockmq.broker.config.schema import Config
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import until
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

HTTP: dict[str, object] = {"http.listen": "127.0.0.1:0"}


def results(api: HttpClient, check: str) -> list[dict[str, Any]]:
    """The results of a check, of all nodes."""
    found = api.get("/doctor")
    assert found["failures"] == {}
    return [result for node in found["nodes"].values() for result in node if result["check"] == check]


def severities(api: HttpClient, check: str) -> list[str]:
    return [result["severity"] for result in results(api, check)]


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_node_that_is_well(start_broker: StartBroker) -> None:
    broker = start_broker(HTTP)
    api = HttpClient(broker)
    page = api.command("doctor")
    assert page.splitlines()[0].startswith("node ")
    for words in ("ok    versions: FlockMQ ", "ok    store: persistent sessions", "ok    limits: the fullest is"):
        assert words in page
    assert "->" in page  # each finding has its remedy
    found = json.loads(api.command("doctor", "--json"))
    (node,) = found["nodes"].values()
    order = [doctor.SEVERITIES.index(result["severity"]) for result in node]
    assert order == sorted(order)
    assert all(result["remedy"] for result in node if result["severity"] in ("bad", "weak"))


@pytest.mark.parametrize("store", ["memory"])
def test_limits_that_are_almost_full(start_broker: StartBroker) -> None:
    broker = start_broker({**HTTP, "limits.max_sessions": 5})
    api = HttpClient(broker)
    clients = [SocketClient(broker.port, f"c{number}") for number in range(4)]
    assert severities(api, "limits") == ["weak"]
    clients.append(SocketClient(broker.port, "last"))
    (full,) = results(api, "limits")
    assert full["severity"] == "bad" and full["finding"].startswith("limits.max_sessions is 100% full: 5 of 5 sessions")
    assert "A new client identifier is refused" in full["finding"]
    assert full["remedy"].startswith("Set limits.max_sessions")
    assert "limits.max_sessions is 100% full" in api.command("doctor", status=1)
    for client in clients:
        client.close()


@pytest.mark.parametrize("store", ["memory"])
def test_clients(start_broker: StartBroker) -> None:
    """One acknowledges nothing; another is away, and its queue is full."""
    broker = start_broker(
        {**HTTP, "limits.stuck_after": "1 s", "limits.max_inflight": 1, "limits.max_queued_messages": 3}
    )
    api = HttpClient(broker)
    assert results(api, "clients") == []
    with SocketClient(broker.port, "slow") as slow, SocketClient(broker.port, "p") as publisher:
        slow.subscribe(("t", 1))
        for _ in range(5):
            publisher.send(Publish("t", b"x", 1, packet_id=1))
            publisher.receive()
        until(lambda: severities(api, "clients") == ["weak", "note"])
        stuck, lost = results(api, "clients")
        assert "messages of 1 clients wait" in stuck["finding"] and "slow for the longest time" in stuck["finding"]
        assert "dropped_queue_full" in lost["finding"]


@pytest.mark.parametrize("store", ["sqlite"])
def test_it_needs_an_administrator_and_shows_no_secret(start_broker: StartBroker, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    admin, reader = add(tokens, "a", "admin", ""), add(tokens, "r", "viewer", "")
    links = json.dumps({"far": {"url": "mqtt://127.0.0.1:1", "topics": ["x"], "username": "u", "password": "sesame"}})
    broker = start_broker({**HTTP, "http.tokens_file": tokens, "links": links})
    assert [HttpClient(broker, token).ask("GET", "/doctor").status for token in ("", reader, admin)] == [401, 403, 200]
    text = HttpClient(broker, admin).ask("GET", "/doctor").data.decode()
    assert "sesame" not in text and "mqtt://127.0.0.1:1" in text


def test_redis_without_persistence(start_cluster: StartCluster) -> None:
    cluster = start_cluster(HTTP, redis="nothing")
    found = results(HttpClient(cluster["a"]), "store")
    assert len(found) == 3 and all(result["severity"] == "weak" for result in found)
    assert "nothing on disk" in found[0]["finding"]


def test_redis_that_is_away(start_cluster: StartCluster) -> None:
    cluster = start_cluster(HTTP, nodes="a")
    api = HttpClient(cluster["a"])
    assert severities(api, "ready") == []
    cluster.redis.kill()
    until(lambda: severities(api, "ready") == ["bad"])
    assert "the durability of Redis is unknown" in results(api, "store")[0]["finding"]
    cluster.redis.start()


def test_a_node_that_does_not_answer(start_cluster: StartCluster) -> None:
    cluster = start_cluster({**HTTP, "cluster.lease": 30}, nodes="ab")
    api = HttpClient(cluster["a"])
    cluster["b"].signal(signal.SIGSTOP)
    page = api.command("doctor", status=1)
    assert "node a" in page
    cluster["b"].signal(signal.SIGCONT)


def examined(**fields: Any) -> doctor.Examined:
    """A node that is well, but for some fields."""
    well = {
        "config": Config(),
        "version": "0.1.0",
        "keeps": "",
        "ready": (True, ""),
        "risks": [],
        "uses": [],
        "figures": {},
        "oldest": None,
    }
    return doctor.Examined(**{**well, **fields})


def test_a_disk_with_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite3.connect(tmp_path / "x.db").close()
    node = examined(config=load({"store.url": f"sqlite:{tmp_path / 'x.db'}"}, {}))
    assert [result.severity for result in doctor.disk(node)] == ["ok"]
    monkeypatch.setattr(doctor, "MIN_FREE_DISK", 2 * shutil.disk_usage(tmp_path).free)
    assert [result.severity for result in doctor.disk(node)] == ["weak"]
    monkeypatch.setattr(doctor, "MIN_FREE_DISK", 1 << 60)
    (full,) = doctor.disk(node)
    assert full.severity == "bad" and "stops all acknowledgements" in full.finding


def test_a_store_that_was_removed() -> None:
    (gone,) = doctor.disk(examined(config=load({"store.url": "sqlite:/nonexistent/x.db"}, {})))
    assert gone.severity == "bad" and "can't be found" in gone.finding


def test_few_descriptors() -> None:
    script = "from tests.web.test_doctor import *; print([r.severity for r in doctor.descriptors(examined())])"
    command = ["sh", "-c", f'ulimit -n 1000; exec {sys.executable} -c "{script}"']
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "['weak']\n", done.stderr


def test_slow_parts() -> None:
    slow = examined(figures={"store_latency_seconds": 2.5, "loop_lag_seconds": 0.6})
    store, loop = doctor.speed(slow)
    assert store.finding.startswith("the store took 2.5 s") and "busy for 0.6 s" in loop.finding
    assert not list(doctor.speed(examined(figures={"store_latency_seconds": 0.1, "loop_lag_seconds": 0.1})))
