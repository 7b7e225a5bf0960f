"""The programs that read the log of messages of a cluster: list."""

from typing import Any

from ..operation import Operation, Request, listed
from ..schema import integer, number, record, text

READER = record(
    {
        "name": text("`connect:NAME`: a pipe; `lake:NAME`: a table; else the job of a Spark query"),
        "behind": integer("bytes of the log that it has yet to read"),
        "lost": integer("bytes that were deleted from the log before it read them"),
        "seconds": number("since it was last heard of"),
    }
)


async def log_readers(request: Request) -> dict[str, Any]:
    """The readers, by name."""
    found = await request.node.broker.coordinator.nodes.log_readers()
    return {"items": [reader._asdict() for reader in found], "next": None}


OPERATIONS = (
    Operation(
        "GET",
        "/log/readers",
        "log_readers",
        "Programs that read the log of messages: Spark, `flockmq lake`, `flockmq connect`. The log is kept for them.",
        log_readers,
        listed(READER),
    ),
)
