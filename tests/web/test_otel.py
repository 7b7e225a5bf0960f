"""The figures by OTLP: a collector gets them from a real node, and an absent collector does no harm."""

import socket
from collections.abc import Callable, Iterator

import pytest

from flockmq.broker.metrics import METRICS
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.otlp_server import OtlpServer
from tests.protocol.wire import Wire

pytestmark = pytest.mark.one_process
StartBroker = Callable[..., Broker]


def figures(collector: OtlpServer) -> dict[str, float]:
    """The figures of the last request."""
    found = {}
    for metric in collector.requests["/v1/metrics"][-1].resource_metrics[0].scope_metrics[0].metrics:
        kind = metric.sum if metric.HasField("sum") else metric.gauge
        (point,) = kind.data_points
        found[metric.name] = point.as_int if point.HasField("as_int") else point.as_double
    return found


@pytest.fixture(autouse=True)
def exports_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval of the library, in milliseconds."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")


@pytest.fixture
def collector() -> Iterator[OtlpServer]:
    collector = OtlpServer()
    yield collector
    collector.close()


def test_figures_are_exported(start_broker: StartBroker, collector: OtlpServer) -> None:
    broker = start_broker({"otel.endpoint": collector.url, "cluster.node_name": "attic"})
    with Wire(broker.port, name="c") as client:
        client.connect().subscribe("t:0")
        client.send("publish t hello")
        client.expect("publish t hello")
        until(lambda: collector.requests["/v1/metrics"] and figures(collector)["flockmq.publish_sent"] == 1)
        assert figures(collector)["flockmq.clients_connected"] == 1
        assert figures(collector).keys() == {f"flockmq.{metric.name}" for metric in METRICS}
    resource = {
        a.key: a.value.string_value
        for a in collector.requests["/v1/metrics"][0].resource_metrics[0].resource.attributes
    }
    assert resource["service.name"] == "flockmq"
    assert resource["service.instance.id"] == "attic"
    assert broker.stop() == 0
    assert figures(collector)["flockmq.clients_connected"] == 0


def test_a_collector_that_is_away(start_broker: StartBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    broker = start_broker({"otel.endpoint": f"http://127.0.0.1:{port}"})
    broker.wait_for_log("[Ee]xport|[Tt]ransient|[Rr]etry")
    with Wire(broker.port, name="c") as client:
        client.connect()
        client.send("pingreq")
        client.expect("pingresp")
    assert broker.stop() == 0
