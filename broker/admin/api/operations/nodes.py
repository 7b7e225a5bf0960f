"""The nodes: how they do, where they listen, what they count."""

from typing import Any

from broker.admin.api.aggregate import ask, failures, values
from broker.admin.api.operation import FAILURES, Operation, Request
from broker.admin.api.schema import array, boolean, integer, number, record, table, text

FIGURES = table(number(), "the figures of /metrics, by name")
NODE = record(
    {
        "name": text(),
        "version": text(),
        "pid": integer(),
        "started": number("seconds since 1970"),
        "ready": boolean("whether new clients are welcome"),
        "state": text("why"),
        "keeps": text("what is kept where"),
        "link": boolean("whether the cluster's Redis answers"),
        "resident_bytes": integer(),
        "cpu_seconds": number(),
        "figures": FIGURES,
    }
)


def by_node(answer: Any) -> dict[str, Any]:
    """The schema of what each node says."""
    return record({"nodes": table(answer, "by the nodes' ids"), "failures": FAILURES})


async def told(request: Request, question: str, **arguments: Any) -> dict[str, Any]:
    """What each node says."""
    answers = await ask(request.node, question, **arguments)
    return {"nodes": values(answers), "failures": failures(answers)}


async def nodes(request: Request) -> dict[str, Any]:
    """All nodes; `here` is the one that was asked."""
    return {"here": request.node.broker.coordinator.node_id, **await told(request, "node")}


async def who(request: Request) -> dict[str, Any]:
    """Who asks."""
    return {"name": request.holder.name, "role": request.holder.role}


async def metrics(request: Request) -> dict[str, Any]:
    """What all nodes count."""
    return await told(request, "figures")


async def listeners(request: Request) -> dict[str, Any]:
    """Where all nodes listen."""
    return await told(request, "listeners")


OPERATIONS = (
    Operation(
        "GET",
        "/nodes",
        "nodes",
        "The nodes, and how they do.",
        nodes,
        record({"here": text(), "nodes": table(NODE, "by the nodes' ids"), "failures": FAILURES}),
    ),
    Operation("GET", "/me", "me", "Whose token is shown.", who, record({"name": text(), "role": text()})),
    Operation("GET", "/metrics", "metrics", "What the nodes count, as JSON.", metrics, by_node(FIGURES)),
    Operation(
        "GET",
        "/listeners",
        "listeners",
        "Where the nodes listen.",
        listeners,
        by_node(array(record({"kind": text(), "address": text()}))),
    ),
)
