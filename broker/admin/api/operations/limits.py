"""The limits of the nodes, and how full they are."""

from http import HTTPStatus
from typing import Any

from ....limits import LIMITS, SCOPES, UNITS
from ...http.problems import missing
from ..aggregate import call, failures, values
from ..operation import FAILURES, Operation, Request
from ..schema import array, integer, nullable, number, record, text
from .nodes import MAX_NODE

ROWS = {row.name: row for row in LIMITS}
LIMIT = record(
    {
        "name": text("configuration key", enum=list(ROWS)),
        "scope": text("whether it limits a node, the cluster, or each session, connection, ...", enum=list(SCOPES)),
        "unit": text(enum=list(UNITS)),
        "limit": nullable(integer("null: there is none")),
        "used": nullable(integer("by the fullest one; null: it is not known")),
        "full": nullable(number("used / limit; null: there is no limit, or it is full in normal operation")),
        "whose": text("name of the fullest session, group, tenant, ..."),
        "node": text("id of the node where it is fullest"),
        "when_reached": text("what happens then"),
        "change": text("how to change the limit"),
    }
)


async def limits(request: Request) -> dict[str, Any]:
    """The limits, fullest first: the limits of a node, or each limit at the node where it is fullest."""
    answers = await call(request.node, "limits")
    wanted = request.arguments["node"]
    found = {node: items for node, items in values(answers).items() if wanted in ("", node)}
    if wanted and wanted not in answers:
        raise missing("there is no such node")
    items = merged(found)
    return {
        "items": sorted(items, key=_fullness, reverse=True),
        "failures": {node: why for node, why in failures(answers).items() if wanted in ("", node)},
    }


def merged(nodes: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of each limit the item of the node where it is fullest, with the row of the limit."""
    best: dict[str, dict[str, Any]] = {}
    for node, items in nodes.items():
        for item in items:
            known = best.get(item["name"])
            if item["name"] in ROWS and (known is None or _fullness(item) > _fullness(known)):
                best[item["name"]] = {**item, "node": node}
    return [
        {
            **best[name],
            "scope": row.scope,
            "unit": row.unit,
            "when_reached": row.when_reached,
            "change": row.change,
        }
        for name, row in ROWS.items()
        if name in best
    ]


def _fullness(item: dict[str, Any]) -> tuple[float, int]:
    """Orders limits: the fullest is the highest."""
    return (-1.0 if item["full"] is None else item["full"], item["used"] or 0)


OPERATIONS = (
    Operation(
        "GET",
        "/limits",
        "limits",
        "The limits and how full they are, fullest first: each at the node where it is fullest.",
        limits,
        record({"items": array(LIMIT)}, {"failures": FAILURES}),
        arguments={"node": text("id of a node: only its limits", maxLength=MAX_NODE, default="")},
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
