"""/metrics: the metrics of `flockmq.broker.metrics` and of the process, in Prometheus' text format."""

import os
import resource
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ...._speedups.net.listener import Listener
from ...._speedups.session.tenant import Tenant
from ...._speedups.session.topic_meter import TopicMeter
from ...broker import Broker
from ...coordination.coordinator import ShardState
from ...metrics import METRICS, TENANT_FIGURES

KIND = "text/plain; version=0.0.4; charset=utf-8"
LISTENER_FIGURES = (
    ("connections", "gauge", "Open connections of a listener."),
    ("accepted", "counter", "Connections that it has accepted."),
    ("refused", "counter", "Connections that it has closed at once, by a quota."),
    ("bytes_received", "counter", "Bytes read from its clients."),
    ("bytes_sent", "counter", "Bytes written to them."),
)
LINK_FIGURES = (
    ("flockmq_link_up", "gauge", "1 while a link to another broker is connected."),
    ("flockmq_link_waiting", "gauge", "Messages for the other broker that it has not acknowledged."),
    ("flockmq_link_messages_total", "counter", "Messages that a link has carried, out or in."),
    ("flockmq_link_refused_total", "counter", "Messages of QoS 1 and 2 that their receiver refused."),
    ("flockmq_link_ended_total", "counter", "Messages that ended at a link, by the reason."),
    ("flockmq_link_wanted", "gauge", "Topic filters that the receiver of a direction asks for, with wanted_only."),
)
SHARD_FIGURES = (
    ("connected", "gauge", "1 while the Redis of a shard answers this node."),
    ("waiting", "gauge", "Blocks of this node that the Redis of a shard has not confirmed yet."),
    ("latency_seconds", "gauge", "The longest that it took to confirm a block, of the last 15 seconds."),
)
TOPIC_FIGURES = (
    ("messages_received", "received", "Messages of a topic filter that this node has accepted."),
    ("received_bytes", "received_bytes", "Bytes of their payloads."),
    ("messages_sent", "sent", "Deliveries of messages of a topic filter to sessions and shared subscriptions."),
    ("sent_bytes", "sent_bytes", "Bytes of their payloads."),
)
MAX_TENANTS = 100  # that have their own figures: the first that the node has seen
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def page(broker: Broker, version: str, node: str, links: list[dict[str, Any]]) -> str:
    """All metrics with their present values; each has the label `node`.

    Args:
        broker: of the node.
        version: of FlockMQ.
        node: this node's name.
        links: the links that this node runs, as `Links` describes them.
    """
    label = f'node="{node}"'
    text = "The version and the name of the node."
    lines = [*_row("flockmq_info", "gauge", text, 1, f'version="{version}",{label}')]
    figures = broker.data_plane.turn.counted()
    for metric in METRICS:
        suffix = "_total" if metric.kind == "counter" else ""
        lines += _row(f"flockmq_{metric.name}{suffix}", metric.kind, metric.help, metric.read(broker, figures), label)
    lines += _listeners(list(broker.data_plane.reactor.listeners.values()), label)
    lines += _shards(broker.coordinator.nodes.shards, label)
    lines += _tenants(list(islice(broker.data_plane.turn.tenants, MAX_TENANTS)), label)
    lines += _schemas(broker.schemas.mismatches, label)
    lines += _topics(broker.topic_meters.items(), label)
    lines += _links(links, label)
    lines += _process(label)
    return "\n".join(lines) + "\n"


def _row(name: str, kind: str, text: str, value: float, labels: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {value}"


def _listeners(listeners: list[Listener], label: str) -> Iterator[str]:
    """The counters of each listener."""
    for name, kind, text in LISTENER_FIGURES:
        full = listener_name(name, kind)
        yield from (f"# HELP {full} {text}", f"# TYPE {full} {kind}")
        yield from (f'{full}{{listener="{each.name}",{label}}} {getattr(each, name)}' for each in listeners)


def _shards(shards: list[ShardState], label: str) -> Iterator[str]:
    """The figures of each shard, if there are several."""
    for (name, kind, text), values in zip(SHARD_FIGURES, zip(*shards, strict=True), strict=False):
        full = f"flockmq_shard_{name}"
        yield from (f"# HELP {full} {text}", f"# TYPE {full} {kind}")
        yield from (f'{full}{{shard="{number}",{label}}} {float(value):g}' for number, value in enumerate(values))


def _tenants(tenants: list[Tenant], label: str) -> Iterator[str]:
    """The figures of each tenant."""
    for name, kind, text in TENANT_FIGURES if tenants else ():
        full = f"flockmq_tenant_{name}{'_total' if kind == 'counter' else ''}"
        yield from (f"# HELP {full} {text}", f"# TYPE {full} {kind}")
        yield from (f'{full}{{tenant="{_escaped(each.name)}",{label}}} {getattr(each, name)}' for each in tenants)


def _schemas(mismatches: Mapping[tuple[str, str], int], label: str) -> Iterator[str]:
    """The messages that did not fit, by the topic filter of the schema."""
    full = "flockmq_schema_filter_mismatches_total"
    if mismatches:
        yield f"# HELP {full} Messages that did not fit the schema of a topic filter."
        yield f"# TYPE {full} counter"
    for (topic_filter, on_mismatch), number in mismatches.items():
        yield f'{full}{{filter="{_escaped(topic_filter)}",on_mismatch="{on_mismatch}",{label}}} {number}'


def _topics(meters: list[tuple[str, TopicMeter]], label: str) -> Iterator[str]:
    """The figures of the topic filters of metrics.topics."""
    for name, figure, text in TOPIC_FIGURES if meters else ():
        full = f"flockmq_topic_{name}_total"
        yield from (f"# HELP {full} {text}", f"# TYPE {full} counter")
        yield from (f'{full}{{filter="{_escaped(each)}",{label}}} {getattr(meter, figure)}' for each, meter in meters)


def _escaped(text: str) -> str:
    """A text as the value of a label."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _links(links: list[dict[str, Any]], label: str) -> Iterator[str]:
    """The state and the counters of each link."""
    up = [(f'link="{link["name"]}"', int(link["state"] == "connected")) for link in links]
    waiting = [(f'link="{link["name"]}"', link["waiting"]) for link in links]
    messages, dropped, ended, wanted = [], [], [], []
    for link in links:
        for direction, side in (("out", "there"), ("in", "here")):
            if link["wanted"] is not None:
                wanted.append((f'link="{link["name"]}",direction="{direction}"', link["wanted"][side]))
        for direction in ("out", "in"):
            labels, found = f'link="{link["name"]}",direction="{direction}"', link[direction]
            messages.append((labels, found["messages"]))
            dropped.append((labels, found["refused"]))
            ended += [(f'{labels},reason="{reason}"', number) for reason, number in found["ended"].items()]
    rows = zip(LINK_FIGURES, (up, waiting, messages, dropped, ended, wanted), strict=True)
    for (name, kind, text), values in rows if links else ():
        yield from (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
        yield from (f"{name}{{{labels},{label}}} {value}" for labels, value in values)


def listener_name(figure: str, kind: str) -> str:
    """The name of a metric of listeners."""
    return f"flockmq_listener_{figure}{'_total' if kind == 'counter' else ''}"


def _process(label: str) -> Iterator[str]:
    """The standard metrics of a process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # from the third, the state, on
    cpu = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    booted = int(Path("/proc/stat").read_text().partition("btime ")[2].split()[0])  # seconds since 1970
    started = booted + int(fields[19]) / TICKS_PER_SECOND
    resident = int(fields[21]) * resource.getpagesize()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield from _row("process_cpu_seconds_total", "counter", "CPU time, user and system.", cpu, label)
    yield from _row("process_start_time_seconds", "gauge", "When the process began, since 1970.", started, label)
    yield from _row("process_resident_memory_bytes", "gauge", "Memory that is resident.", resident, label)
    yield from _row("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd")), label)
    yield from _row("process_max_fds", "gauge", "File descriptors that may be open.", most_files, label)
