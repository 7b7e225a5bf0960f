"""A server that takes OTLP over HTTP, and reads it with the protocol's own definitions."""

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS: dict[str, type[Message]] = {
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
}


class TakenSpan(NamedTuple):
    """A span as the server got it."""

    node: str
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]  # without "messaging." and "flockmq." in front
    error: str
    events: list[str]
    state: str

    @property
    def client(self) -> str:
        return str(self.attributes.get("client.id", ""))


class OtlpServer:
    """Takes requests until it is closed. With `status` it refuses them."""

    def __init__(self, port: int = 0) -> None:
        self.requests: dict[str, list[Any]] = {path: [] for path in KINDS}
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.refused = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = KINDS[self.path].FromString(body)
                if server.status == 200:
                    server.headers.append(dict(self.headers.items()))
                    server.requests[self.path].append(request)
                else:
                    server.refused += 1
                self.send_response(server.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, wanted: Callable[[TakenSpan], bool] = lambda _: True) -> list[TakenSpan]:
        """The spans so far, in the order of their ends."""
        found = []
        for request in list(self.requests["/v1/traces"]):
            for group in request.resource_spans:
                node = {a.key: a.value.string_value for a in group.resource.attributes}["service.instance.id"]
                found += [_span(node, span) for scope in group.scope_spans for span in scope.spans]
        return sorted(filter(wanted, found), key=lambda span: span.end)


def _span(node: str, span: Any) -> TakenSpan:
    attributes = {
        a.key.removeprefix("messaging.").removeprefix("flockmq."): getattr(a.value, a.value.WhichOneof("value"))
        for a in span.attributes
    }
    error = span.status.message if span.status.code == 2 else ""
    return TakenSpan(
        node,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes,
        error,
        [event.name for event in span.events],
        span.trace_state,
    )
