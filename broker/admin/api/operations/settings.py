"""What can be changed until the next start."""

from typing import Any

from broker.admin.api.operation import Operation, Request
from broker.admin.api.operations.nodes import by_node, told
from broker.admin.api.schema import record, text
from broker.logs import LEVELS

LEVEL = text("the least important lines that are written", enum=list(LEVELS))


async def log_level(request: Request) -> dict[str, Any]:
    """What each node has; first set, if the request says which."""
    return await told(request, "log_level", **request.body)


OPERATIONS = (
    Operation("GET", "/log-level", "log_level", "What the nodes write into their logs.", log_level, by_node(LEVEL)),
    Operation(
        "PUT",
        "/log-level",
        "set_log_level",
        "Let all nodes write more or less, until they are started again or read their configuration.",
        log_level,
        by_node(LEVEL),
        role="admin",
        body=record({"level": LEVEL}),
    ),
)
