"""The metrics of `flockmq.broker.metrics` by OTLP over HTTP, to an OpenTelemetry collector.

The library exports in its own thread; it is imported only if `otel.endpoint` is set.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ... import logs
from ...broker import Broker
from ...config.admin_config import OtelConfig
from ...errors import UsageError
from ...metrics import METRICS, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider

STOP_MILLISECONDS = 2000.0  # that the last export may take

log = logs.get("flockmq.otel")


class Exporter:
    """Exports the metrics of `broker()`, at the interval of `OTEL_METRIC_EXPORT_INTERVAL`.

    Args:
        config: endpoint.
        broker: returns the broker; another one after a rejoin.
        version: of FlockMQ.
        node: this node's name.

    Raises:
        UsageError: the library isn't installed.
    """

    def __init__(self, config: OtelConfig, broker: Callable[[], Broker], version: str, node: str) -> None:
        self._broker = broker
        self._provider = _provider(config, version, node)
        meter = self._provider.get_meter("flockmq", version)
        for metric in METRICS:
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            make(f"flockmq.{metric.name}", [partial(self._observe, metric)], description=metric.help)

    def _observe(self, metric: Metric, options: "CallbackOptions") -> "Iterable[Observation]":
        from opentelemetry.metrics import Observation

        broker = self._broker()
        yield Observation(metric.read(broker, broker.data_plane.turn.counted()))

    def stop(self) -> None:
        """Export the last values; blocks for a moment."""
        try:
            self._provider.shutdown(STOP_MILLISECONDS)
        except Exception as error:
            log.warning("the last metrics could not be exported", reason=error)


def _provider(config: OtelConfig, version: str, node: str) -> "MeterProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ModuleNotFoundError as error:
        raise UsageError(f"otel.endpoint needs the package {error.name}", "pip install 'flockmq[otel]'") from error
    exporter = OTLPMetricExporter(f"{config.endpoint.rstrip('/')}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter)
    resource = Resource.create({"service.name": "flockmq", "service.version": version, "service.instance.id": node})
    return MeterProvider([reader], resource)
