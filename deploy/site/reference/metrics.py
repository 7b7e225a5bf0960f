"""The page of metrics, from the rows that /metrics, $SYS and OpenTelemetry are derived from."""

from collections.abc import Iterator

from flockmq.broker.admin.exporters.prometheus import LINK_FIGURES, LISTENER_FIGURES, listener_name
from flockmq.broker.metrics import METRICS, TENANT_FIGURES

from .text import code, escaped, row, table

HEAD = """\
# Metrics

For operators. The question: which figures does a node publish, and under which names?

`/metrics` has the names of the first column ([HTTP](../HTTP.md)). The second column is the topic below `$SYS/broker/`,
on which the node publishes the same figure every `mqtt.sys_interval`. Every metric has the label `node`. A *counter*
only grows; a *gauge* is the present value. [Alerts](../RUNBOOK.md#alerts) use them.
"""
PROCESS = """\
`process_cpu_seconds_total`, `process_start_time_seconds`, `process_resident_memory_bytes`, `process_open_fds` and
`process_max_fds` are the standard metrics of a process. `flockmq_info` has the label `version`.
"""


def page() -> str:
    """The page."""
    return "\n".join([HEAD, *_lines()])


def _lines() -> Iterator[str]:
    yield from ("## Of the node", "")
    rows = [row(code(_full(m.name, m.kind)), code(m.topic), m.kind, escaped(m.help)) for m in METRICS]
    yield from table(("metric", "topic", "kind", "meaning"), rows)
    yield from ("## Of each listener", "", "The label `listener` is its name.", "")
    yield from _plain((listener_name(name, kind), kind, text) for name, kind, text in LISTENER_FIGURES)
    yield from ("## Of each tenant", "", "The label `tenant` is its name.", "")
    yield from _plain((_full(f"tenant_{name}", kind), kind, text) for name, kind, text in TENANT_FIGURES)
    yield from ("## Of each link", "", "The label `link` is its name; some have `direction` or `reason`, too.", "")
    yield from _plain(LINK_FIGURES)
    yield from ("## Of the process", "", PROCESS)


def _full(name: str, kind: str) -> str:
    return f"flockmq_{name}{'_total' if kind == 'counter' else ''}"


def _plain(figures: Iterator[tuple[str, str, str]] | tuple[tuple[str, str, str], ...]) -> list[str]:
    return table(("metric", "kind", "meaning"), [row(code(name), kind, escaped(text)) for name, kind, text in figures])
