"""The nodes: state, listeners and metrics."""

from http import HTTPStatus
from typing import Any

from ...http.problems import missing
from ..aggregate import call, failures, values
from ..operation import FAILURES, Operation, Request
from ..schema import array, boolean, integer, number, record, table, text

MAX_NODE = 64  # characters of a node's id
MAX_REFERENCE = 1024  # characters

FIGURES = table(number(), "the figures of /metrics, by name")
SHARD = record(
    {
        "connected": boolean("whether the Redis of the shard answers"),
        "waiting": integer("blocks that it has not confirmed"),
        "latency": number("the longest that it took for a block, of the last 15 seconds"),
    }
)
NODE = record(
    {
        "name": text(),
        "version": text(),
        "pid": integer(),
        "started": number("seconds since 1970"),
        "ready": boolean("whether it accepts new clients"),
        "state": text("the reason"),
        "keeps": text("where state is stored"),
        "link": boolean("whether the cluster's Redis answers"),
        "shards": array(SHARD, "the shards of a cluster with several, in the order of cluster.redis; else empty"),
        "resident_bytes": integer(),
        "cpu_seconds": number(),
        "figures": FIGURES,
    }
)

HOLDER = record({"name": text(), "role": text(), "tenant": text("that it is for; empty: for the whole broker")})


def by_node(answer: Any) -> dict[str, Any]:
    """The schema of a value of each node."""
    return record({"nodes": table(answer, "by the nodes' ids"), "failures": FAILURES})


async def collect(request: Request, method: str, **arguments: Any) -> dict[str, Any]:
    """The value of each node."""
    answers = await call(request.node, method, **arguments)
    return {"nodes": values(answers), "failures": failures(answers)}


async def nodes(request: Request) -> dict[str, Any]:
    """All nodes; `here` is the node that serves the request."""
    return {"here": request.node.broker.coordinator.nodes.node_id, **await collect(request, "node")}


async def drain(request: Request) -> dict[str, Any]:
    """Move the clients of a node to other nodes."""
    references = request.body.get("reference", "").split()
    others = values(await call(request.node, "own_references")).values()
    draining = sorted({reference for own in others for reference in own})
    answers = await call(request.node, "drain", id=request.arguments["node"], references=references, draining=draining)
    found = [value for value in values(answers).values() if value is not None]
    if not found:
        raise missing("there is no such node, or it did not answer")
    return {"references": found[0]}


async def me(request: Request) -> dict[str, Any]:
    """The holder of the token."""
    holder = request.holder
    return {"name": holder.name, "role": holder.role, "tenant": holder.tenant}


async def metrics(request: Request) -> dict[str, Any]:
    """The metrics of all nodes."""
    return await collect(request, "figures")


async def listeners(request: Request) -> dict[str, Any]:
    """The listeners of all nodes."""
    return await collect(request, "listeners")


OPERATIONS = (
    Operation(
        "GET",
        "/nodes",
        "nodes",
        "The nodes and their state.",
        nodes,
        record({"here": text(), "nodes": table(NODE, "by the nodes' ids"), "failures": FAILURES}),
    ),
    Operation(
        "POST",
        "/nodes/{node}/drain",
        "drain",
        "Close the clients of a node, and take none until it is restarted: MQTT 5.0 ones are sent to other servers.",
        drain,
        record({"references": array(text("HOST:PORT"), "the servers that MQTT 5.0 clients are sent to")}),
        role="admin",
        arguments={"node": text("id of the node", minLength=1, maxLength=MAX_NODE)},
        required=("node",),
        body=record(
            {},
            {
                "reference": text(
                    "HOST:PORT, or several with spaces between them [mqtt.server_reference without drained nodes]",
                    maxLength=MAX_REFERENCE,
                    pattern=r"^[!-~]+( [!-~]+)*$",
                )
            },
        ),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        "GET",
        "/me",
        "me",
        "The holder of the token.",
        me,
        HOLDER,
    ),
    Operation("GET", "/metrics", "metrics", "The metrics of the nodes, as JSON.", metrics, by_node(FIGURES)),
    Operation(
        "GET",
        "/listeners",
        "listeners",
        "The listeners of the nodes.",
        listeners,
        by_node(array(record({"kind": text(), "address": text()}))),
    ),
)
