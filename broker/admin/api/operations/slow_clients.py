"""Clients that are too slow, and figures of topic filters."""

import heapq
from typing import Any

from ....rpc.slow_clients import ORDERS
from ....rpc.topic_metrics import FIGURES
from ..aggregate import call, failures, values
from ..operation import FAILURES, TENANT, Operation, Request
from ..schema import array, boolean, integer, nullable, number, record, text

MOST = 100  # clients in a result
CLIENT = record(
    {
        "client_id": text(),
        "connected": boolean("to this node"),
        "username": text("as verified; empty = anonymous, or not connected"),
        "address": text("HOST:PORT; empty = not connected"),
        "queued_messages": integer("that it has not acknowledged; in a cluster, as far as this node has them"),
        "queued_bytes": integer(),
        "oldest_seconds": nullable(
            integer("since others wait behind a message that it does not acknowledge, within 5 s; null: none waits")
        ),
        "dropped_messages": integer("that it has lost since the node started, of the last 1000 such clients"),
        "dropped_queue_full": integer("of these: at its full queue"),
        "dropped_output_full": integer("of these: QoS 0, as it did not read its connection"),
        "dropped_ago": nullable(number("seconds since the last one; null: it has lost none")),
        "node": text("id of the node"),
    }
)
ORDER = {"queue": "queued_messages", "age": "oldest_seconds", "drops": "dropped_messages"}
TOPIC = record(
    {
        "filter": text("topic filter of metrics.topics"),
        "received": integer("messages that nodes have accepted"),
        "received_bytes": integer("of their payloads"),
        "sent": integer("deliveries to sessions and shared subscriptions"),
        "sent_bytes": integer("of their payloads"),
    }
)


async def slow_clients(request: Request) -> dict[str, Any]:
    """The slowest clients of all nodes."""
    answers = await call(request.node, "slow_clients", **request.scope, **request.arguments)
    figure = ORDER[request.arguments["by"]]
    items = [{**item, "node": node} for node, found in values(answers).items() for item in found]
    slowest = heapq.nlargest(request.arguments["limit"], items, key=lambda item: item[figure] or 0)
    return {"items": slowest, "failures": failures(answers)}


async def topic_metrics(request: Request) -> dict[str, Any]:
    """The figures of topic filters, summed over the nodes."""
    answers = await call(request.node, "topic_metrics")
    sums: dict[str, dict[str, Any]] = {}
    for items in values(answers).values():
        for item in items:
            known = sums.setdefault(item["filter"], {"filter": item["filter"], **dict.fromkeys(FIGURES, 0)})
            for figure in FIGURES:
                known[figure] += item[figure]
    return {"items": list(sums.values()), "failures": failures(answers)}


OPERATIONS = (
    Operation(
        "GET",
        "/slow-clients",
        "slow_clients",
        "The clients that are slowest to take messages, the slowest first.",
        slow_clients,
        record({"items": array(CLIENT)}, {"failures": FAILURES}),
        arguments={
            "by": text(
                "queue: messages that wait; age: of the oldest unacknowledged one that others wait behind; drops: lost",
                default="queue",
                enum=list(ORDERS),
            ),
            "limit": integer("how many at most", minimum=1, maximum=MOST, default=10),
            "tenant": TENANT,
        },
    ),
    Operation(
        "GET",
        "/topic-metrics",
        "topic_metrics",
        "Messages and bytes of the topic filters of metrics.topics, since the nodes started, of all nodes.",
        topic_metrics,
        record({"items": array(TOPIC)}, {"failures": FAILURES}),
    ),
)
