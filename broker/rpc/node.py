"""Calls about a node: state, metrics, listeners, log level."""

import os
import resource
import time
from pathlib import Path
from typing import Any

from .. import logs
from ..core.calls import Arguments
from ..metrics import METRICS
from .node_view import NodeView

STARTED = time.time()


def describe(node: NodeView, arguments: Arguments) -> dict[str, Any]:
    """Name, version and state of the node."""
    broker = node.broker
    ready, reason = broker.ready()
    return {
        "name": node.name,
        "version": node.version,
        "pid": os.getpid(),
        "started": round(STARTED, 3),
        "ready": ready,
        "state": reason,
        "keeps": broker.coordinator.life.describe(),
        "link": broker.coordinator.nodes.connected,
        "shards": [shard._asdict() for shard in broker.coordinator.nodes.shards],
        "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
        "cpu_seconds": round(time.process_time(), 3),
        "figures": figures(node, arguments),
    }


def figures(node: NodeView, arguments: Arguments) -> dict[str, float]:
    """Its metrics, by the names in `flockmq.broker.metrics`."""
    counted = node.broker.data_plane.turn.counted()
    return {metric.name: metric.read(node.broker, counted) for metric in METRICS}


def own_references(node: NodeView, arguments: Arguments) -> list[str]:
    """The configured server references that name it, if it is about to lose its clients."""
    if not node.broker.redirect.draining:
        return []
    return [one for one in node.config.mqtt.server_reference if node.listeners.are_named(one, node.name)]


def drain(node: NodeView, arguments: Arguments) -> list[str] | None:
    """Begin to move its clients to other nodes, if it is the node `id`.

    Returns the servers that clients of level 5 are sent to: the `references` if there are some, else the configured
    servers without `draining`, which name other nodes. None: it is another node.
    """
    if arguments["id"] != node.broker.coordinator.nodes.node_id:
        return None
    draining, are_named = arguments["draining"], node.listeners.are_named
    references = node.broker.draining.begin(
        lambda one: one in draining or are_named(one, node.name), tuple(arguments["references"])
    )
    return list(references)


def listeners(node: NodeView, arguments: Arguments) -> list[dict[str, Any]]:
    """The addresses that it listens on."""
    kinds = [
        ("mqtt", node.listeners.urls()),
        ("proxy", node.listeners.urls(proxied=True)),
        ("http", node.http_addresses),
    ]
    return [{"kind": kind, "address": address} for kind, addresses in kinds for address in addresses]


def record(node: NodeView, arguments: Arguments) -> None:
    """Record a change that a command has made in Redis, in the audit log of one node."""
    if node.broker.coordinator.nodes.is_responsible("audit log"):
        node.audit_log.add(**arguments)


def log_level(node: NodeView, arguments: Arguments) -> str:
    """Its log level; first set to `level`, if that is given."""
    if "level" in arguments:
        logs.set_level(arguments["level"])
    return logs.level()
