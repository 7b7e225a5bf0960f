"""The spans of traced messages by OTLP over HTTP, to an OpenTelemetry collector.

A thread makes the spans and sends them, so a collector that is slow or away does not stop the node. Spans wait for it
for a while, then they are dropped and counted. The library is imported only if `traces.endpoint` is set.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from queue import Empty, Full, Queue
from threading import Thread
from typing import TYPE_CHECKING

from ... import logs
from ...config.admin_config import TracesConfig
from ...errors import UsageError
from ...tracing import SpanCounts
from .spans import Span, Spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from ...._speedups.session.span_recorder import SpanStep

MAX_BATCHES = 10  # of steps, a second each, that wait for the thread
MAX_WAITING = 10_000  # spans that wait for the collector
MAX_SENT = 500  # spans in a request
WAIT_SECONDS = 120  # for which a span waits for the collector
EXPORT_SECONDS = 5.0  # that the collector may take, attempts of the library included
STOP_SECONDS = 2.0  # that the last export may take
SWITCH_SECONDS = 0.0005  # for which the loop waits at most while the thread works; Python's default is ten times that
END = None
KINDS = {"receive": "CONSUMER", "deliver": "PRODUCER"}  # of the others: INTERNAL

LIBRARY_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

log = logs.get("flockmq.otel")


class _LastFault(logging.Handler):
    """Takes the lines that the library logs about each attempt: the first of an export has the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        library = logging.getLogger(LIBRARY_LOG)
        library.propagate = False
        library.handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


class SpanExporter:
    """Exports spans.

    Args:
        config: endpoint.
        counts: counts the spans.
        version: of FlockMQ.
        node: name of this node.

    Raises:
        UsageError: the library isn't installed.
    """

    def __init__(self, config: TracesConfig, counts: SpanCounts, version: str, node: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import SpanExportResult
        except ModuleNotFoundError as error:
            raise UsageError(
                f"traces.endpoint needs the package {error.name}", "pip install 'flockmq[otel]'"
            ) from error
        self._counts = counts
        self._batches: Queue[list[SpanStep] | None] = Queue(MAX_BATCHES)
        self._waiting: list[Span] = []
        self._is_away = False
        self._fault = _LastFault()
        self._library = OTLPSpanExporter(f"{config.endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
        self._success = SpanExportResult.SUCCESS
        self._read = _reader(version, node)
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def add(self, steps: "list[SpanStep]") -> None:
        """Export spans of these steps, later; it never waits."""
        try:
            self._batches.put_nowait(steps)
        except Full:
            self._counts.unmade += len(steps)  # at most a span each

    def stop(self) -> None:
        """Export the last spans, for STOP_SECONDS at most, then end the thread."""
        try:
            self._batches.put(END, timeout=STOP_SECONDS)
        except Full:
            return
        self._thread.join(STOP_SECONDS)
        self._library.shutdown()  # type: ignore[no-untyped-call]  # ends the attempts to reach a collector that is away

    def _run(self) -> None:
        spans = Spans()
        ends = False
        while not ends:
            batches = [self._batches.get(), *self._others()]
            ends = END in batches
            for steps in batches:
                self._waiting += spans.add(steps or (), time.time_ns())
            self._send()

    def _others(self) -> "list[list[SpanStep] | None]":
        """The batches that have been added while the collector was slow."""
        found = []
        try:
            while True:
                found.append(self._batches.get_nowait())
        except Empty:
            return found

    def _send(self) -> None:
        while self._waiting:
            batch = self._waiting[:MAX_SENT]
            if not self._export(batch):
                self._drop()
                return
            self._counts.exported += len(batch)
            del self._waiting[: len(batch)]

    def _export(self, batch: list[Span]) -> bool:
        self._fault.text = ""
        try:
            taken = self._library.export([self._read(span) for span in batch]) is self._success
        except Exception as error:
            self._fault.text = str(error)
            taken = False
        if taken == self._is_away:
            self._is_away = not taken
            if taken:
                log.info("the collector takes spans again")
            else:
                log.warning(
                    f"the collector does not take spans: each waits for {WAIT_SECONDS} s", reason=self._fault.text
                )
        return taken

    def _drop(self) -> None:
        """Drop the spans that have waited for long, and the oldest of too many."""
        oldest = time.time_ns() - WAIT_SECONDS * 10**9
        kept = [span for span in self._waiting if span.end >= oldest][-MAX_WAITING:]
        self._counts.refused += len(self._waiting) - len(kept)
        self._waiting = kept


def _reader(version: str, node: str) -> "Callable[[Span], ReadableSpan]":
    """A function that makes a span of the library."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

    resource = Resource.create({"service.name": "flockmq", "service.version": version, "service.instance.id": node})
    scope = InstrumentationScope("flockmq", version)

    def context(trace_id: str, span_id: str, state: TraceState, is_remote: bool) -> SpanContext:
        return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED), state)

    def events(span: Span) -> Sequence[Event]:
        return [Event(name, attributes, at) for at, name, attributes in span.events]

    def read(span: Span) -> ReadableSpan:
        state = TraceState.from_header([span.state]) if span.state else TraceState()
        parent = context(span.trace_id, span.parent_id, state, span.is_parent_remote) if span.parent_id else None
        return ReadableSpan(
            span.name,
            context(span.trace_id, span.span_id, state, False),
            parent,
            resource,
            span.attributes,
            events(span),
            kind=SpanKind[KINDS.get(span.name, "INTERNAL")],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=scope,
        )

    return read
