"""The figures by OTLP: a collector gets them from a real node, and an absent collector does no harm."""

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from flockmq.broker.metrics import METRICS
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.protocol.wire import Wire

pytestmark = pytest.mark.one_process
StartBroker = Callable[..., Broker]


class Collector:
    """Takes what is sent, and reads it with the protocol's own definitions."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/metrics"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def figures(self) -> dict[str, float]:
        """The figures of the last request."""
        found = {}
        for metric in self.requests[-1].resource_metrics[0].scope_metrics[0].metrics:
            kind = metric.sum if metric.HasField("sum") else metric.gauge
            (point,) = kind.data_points
            found[metric.name] = point.as_int if point.HasField("as_int") else point.as_double
        return found


@pytest.fixture(autouse=True)
def exports_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval of the library, in milliseconds."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def test_figures_are_exported(start_broker: StartBroker, collector: Collector) -> None:
    broker = start_broker({"otel.endpoint": collector.url, "cluster.node_name": "attic"})
    with Wire(broker.port, name="c") as client:
        client.connect().subscribe("t:0")
        client.send("publish t hello")
        client.expect("publish t hello")
        until(lambda: collector.requests and collector.figures()["flockmq.publish_sent"] == 1)
        assert collector.figures()["flockmq.clients_connected"] == 1
        assert collector.figures().keys() == {f"flockmq.{metric.name}" for metric in METRICS}
    resource = {a.key: a.value.string_value for a in collector.requests[0].resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "flockmq"
    assert resource["service.instance.id"] == "attic"
    assert broker.stop() == 0
    assert collector.figures()["flockmq.clients_connected"] == 0


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
