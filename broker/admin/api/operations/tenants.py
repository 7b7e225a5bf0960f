"""Tenants: their figures over all nodes, and their limits."""

import heapq
from typing import Any

from ....config.tenants import LIMITS, limits_of
from ....core.tenants import name_of
from ....metrics import TENANT_FIGURES
from ..aggregate import call, failures, values
from ..operation import AFTER, LIMIT, TENANT, Operation, Request, listed
from ..schema import integer, record, table, text

# Each node has all retained messages, the number of all delayed ones, the bytes of all queues, and the persistent
# sessions of the others: the highest figure counts. The rest are sums.
SHARED = frozenset(
    {"sessions", "subscriptions", "subscription_bytes", "retained", "retained_bytes", "delayed", "queued_bytes"}
)
FIGURES = {name: integer(help_text) for name, _, help_text in TENANT_FIGURES}
ITEM = record(
    {
        "tenant": text("its name"),
        "figures": record(FIGURES, description="of all nodes; counters since the nodes began"),
        "limits": table(integer(), "at each node, of delayed messages and queues at all; 0: none"),
    }
)


async def tenants(request: Request) -> dict[str, Any]:
    """A page of the tenants that rules name, or that have been seen; for a token of a tenant only its tenant."""
    after, limit = request.arguments["after"], request.arguments["limit"]
    rules = request.node.config.tenants
    if request.holder.tenant:  # which may be new
        after, names = "", {request.holder.tenant}
    elif request.prefix:
        names = {name_of(request.prefix)}
    else:
        names = {rule.name for rule in rules} - {"", "*"}
    answers = await call(request.node, "tenants", prefix=request.prefix, after=after, limit=limit)
    found = values(answers)
    names = names.union(*found.values())
    shown = heapq.nsmallest(limit, (name for name in names if name > after))
    more = len(shown) == limit
    items = [
        {
            "tenant": name,
            "figures": merged([node[name] for node in found.values() if name in node]),
            "limits": {**dict.fromkeys(LIMITS, 0), **limits_of(rules, name)},
        }
        for name in shown
    ]
    return {"items": items, "next": shown[-1] if more else None, "failures": failures(answers)}


def merged(parts: list[dict[str, int]]) -> dict[str, int]:
    """The figures of a tenant, summed up over the nodes that have seen it."""
    found = {name: (max if name in SHARED else sum)([part[name] for part in parts] or [0]) for name in FIGURES}
    found["sessions"] = max(found["sessions"], found["connections"])  # each connection has its own
    return found


OPERATIONS = (
    Operation(
        "GET",
        "/tenants",
        "tenants",
        "Tenants, in the order of their names: figures and limits.",
        tenants,
        listed(ITEM),
        arguments={"after": {**AFTER, "default": ""}, "limit": LIMIT, "tenant": TENANT},
    ),
)
