"""deploy/grafana: the dashboard follows its table, Grafana's own types take it, and there is data for every query.

The data is a real Prometheus', which looks at a real cluster through the project's configuration, alerts included.
"""

import importlib.util
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.admin.exporters.prometheus import (
    LINK_FIGURES,
    LISTENER_FIGURES,
    SHARD_FIGURES,
    TOPIC_FIGURES,
    listener_name,
)
from flockmq.broker.metrics import METRICS
from tests.deploy.prometheus_process import PrometheusProcess
from tests.deploy.test_alerts import alerts
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.ports import free_port
from tests.harness.socket_client import SocketClient

GRAFANA = Path("deploy/grafana").resolve()
FILE = GRAFANA / "dashboards" / "flockmq.json"
NAME = re.compile(r"\b(?:flockmq|process|haproxy)_\w+\b")
OURS = {f"flockmq_{m.name}{'_total' if m.kind == 'counter' else ''}" for m in METRICS} | {"flockmq_info"}
OURS |= {listener_name(name, kind) for name, kind, _ in LISTENER_FIGURES} | {name for name, *_ in LINK_FIGURES}
OURS |= {f"flockmq_topic_{name}_total" for name, *_ in TOPIC_FIGURES}
OURS |= {f"flockmq_shard_{name}" for name, *_ in SHARD_FIGURES}
HAPROXY = """\
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend mqtt
    maxconn 1000
    bind 127.0.0.1:{mqtt}
    default_backend nodes
backend nodes
    server a 127.0.0.1:{node}
frontend metrics
    mode http
    bind 127.0.0.1:{metrics}
    http-request use-service prometheus-exporter if {{ path /metrics }}
"""


@cache
def dashboard() -> dict[str, Any]:
    """The file."""
    return dict(json.loads(FILE.read_text("utf-8")))


@cache
def source() -> ModuleType:
    """The table."""
    spec = importlib.util.spec_from_file_location("dashboard", GRAFANA / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def panels() -> list[dict[str, Any]]:
    """The panels that show something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> dict[str, str]:
    """Every query of the dashboard, as Grafana asks it when all nodes are chosen, by panel and letter."""
    chosen = {"$interval": "1m", "$node": ".*"}
    return {
        f"{panel['title']} {target['refId']}": re.sub(r"\$\w+", lambda name: chosen[name[0]], target["expr"])
        for panel in panels()
        for target in panel["targets"]
    }


def test_the_file_is_what_the_table_says() -> None:
    assert dashboard() == source().dashboard(), (
        "python deploy/grafana/dashboard.py > deploy/grafana/dashboards/flockmq.json"
    )


def lost(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """The parts of ours that theirs lacks, or has in another form."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            yield from lost(value, theirs[name], f"{where}.{name}") if name in theirs else [f"{where}.{name}"]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, value in enumerate(ours):
            yield from lost(value, theirs[number], f"{where}[{number}]")
    elif ours != theirs:
        yield f"{where}: {ours!r} became {theirs!r}"


def as_grafana_reads(document: dict[str, Any]) -> Any:
    """The dashboard in the types that Grafana Labs makes from Grafana's schemas."""
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def test_grafana_knows_every_field() -> None:
    assert list(lost(dashboard(), as_grafana_reads(dashboard()))) == []


@pytest.mark.parametrize("kind", ["timeseries", "stat"])
def test_a_misspelt_field_is_noticed(kind: str) -> None:
    document = json.loads(FILE.read_text("utf-8"))
    panel = next(panel for panel in document["panels"] if panel["type"] == kind)
    panel["fieldConfig"]["defaults"]["units"] = "mps"
    panel["options"]["colourMode"] = "value"
    assert len(list(lost(document, as_grafana_reads(document)))) == 2


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_panel_says_what_it_shows() -> None:
    assert all(panel["title"] and panel["description"].endswith(".") for panel in panels())


@pytest.mark.parametrize("of", ["the dashboard", "the alerts"])
def test_only_metrics_that_nodes_have_are_asked_for(of: str) -> None:
    exprs = expressions() if of == "the dashboard" else {name: rule["expr"] for name, rule in alerts().items()}
    for name, expr in exprs.items():
        asked = {metric for metric in NAME.findall(expr) if metric.startswith("flockmq_")}
        assert asked <= OURS, f"{name}: {asked - OURS}"


def test_grafana_finds_its_parts() -> None:
    """The data source that the dashboard takes, and the folder it is read from."""
    assert "uid: prometheus" in (GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text()
    assert "/etc/grafana/dashboards" in (GRAFANA / "provisioning" / "dashboards" / "flockmq.yml").read_text()


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[tuple[ClusterProcess, PrometheusProcess]]:
    """A cluster of three nodes, with some traffic, behind a load balancer; and a Prometheus that sees all of them."""
    ports = {name: free_port() for name in ("a", "b", "c", "mqtt", "metrics")}
    cluster = ClusterProcess(tmp_path, nodes=(), orderly=False)
    links = json.dumps({"back": {"url": f"mqtt://127.0.0.1:{ports['mqtt']}", "topics": ["never out 0"]}})
    for name in "abc":
        more = {"links": links, "metrics.topics": "#", "cluster.shards": 2}
        cluster.add(name, **{"http.listen": f"127.0.0.1:{ports[name]}", **more})
    (tmp_path / "prometheus").mkdir()
    closing = [cluster.close]
    try:
        cluster.start()
        (tmp_path / "haproxy.cfg").write_text(HAPROXY.format(**ports, node=cluster["a"].port))
        balancer = subprocess.Popen(["/usr/sbin/haproxy", "-q", "-db", "-f", tmp_path / "haproxy.cfg"])
        closing += [lambda: balancer.wait(20), balancer.terminate]
        nodes = [f"127.0.0.1:{ports[name]}" for name in "abc"]
        prometheus = PrometheusProcess(
            tmp_path / "prometheus", {"flockmq": nodes, "haproxy": [f"127.0.0.1:{ports['metrics']}"]}
        )
        closing.append(prometheus.close)
        until(lambda: connects(ports["mqtt"]), "HAProxy does not listen")
        with SocketClient(ports["mqtt"], "a") as client:
            client.subscribe(("t/#", 1))
            client.send(*(Publish("t/1", b"x", qos=0) for _ in range(100)))
            until(lambda: len(prometheus.query("flockmq_publish_sent_total > 99")) == 1)
            yield cluster, prometheus
    finally:
        for close in reversed(closing):
            close()
    cluster.check()


def connects(port: int) -> bool:
    """Whether a client gets through."""
    try:
        SocketClient(port, "first").close()
    except (OSError, AssertionError):
        return False
    return True


def active(prometheus: PrometheusProcess) -> set[str]:
    """Names of the alerts that fire, or will when it goes on."""
    return {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}


def test_prometheus_has_what_dashboard_and_alerts_ask_for(seen: tuple[ClusterProcess, PrometheusProcess]) -> None:
    cluster, prometheus = seen
    until(lambda: len(prometheus.query("count_over_time(up[1m]) > 2")) == 4)
    for name, expr in expressions().items():
        assert prometheus.query(expr), f"{name} shows nothing: {expr}"
    for name, rule in alerts().items():
        for metric in NAME.findall(rule["expr"]):
            assert prometheus.query(metric), f"{name} asks for {metric}, which nobody has"
    by_node = prometheus.query(expressions()["Clients by node A"])
    assert {series["metric"]["node"] for series in by_node} == {"a", "b", "c"}
    assert all(rule["health"] == "ok" for rule in prometheus.rules()), prometheus.rules()
    assert active(prometheus) <= {"FlockMQLoopLag"}  # other tests keep the cores busy
    cluster.redis.kill()
    until(lambda: {"FlockMQRedisAway", "FlockMQShardAway"} <= active(prometheus))
    cluster["c"].signal(signal.SIGKILL)
    until(lambda: "FlockMQNodeDown" in active(prometheus))
    cluster.kill()  # SIGTERM would wait for Redis
