"""The log level of the nodes: read, and set until they start again or reload."""

from typing import Any

from ....logs import LEVELS
from ..operation import Operation, Request
from ..schema import record, text
from .nodes import by_node, collect

LEVEL = text("the least important lines that are written", enum=list(LEVELS))


async def log_level(request: Request) -> dict[str, Any]:
    """The log level of each node; first set to the level of the request, if it has one."""
    if request.body:
        request.change.before = await collect(request, "log_level")
    return await collect(request, "log_level", **request.body)


OPERATIONS = (
    Operation("GET", "/log-level", "log_level", "The log level of the nodes.", log_level, by_node(LEVEL)),
    Operation(
        "PUT",
        "/log-level",
        "set_log_level",
        "Set the log level of all nodes, until they restart or reload their configuration.",
        log_level,
        by_node(LEVEL),
        role="admin",
        body=record({"level": LEVEL}),
    ),
)
