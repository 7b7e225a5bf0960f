"""Transactions that wait for their commit: list."""

from typing import Any

from ..operation import LIMIT, Operation, Request, listed
from ..schema import integer, number, record, text

PART = record(
    {
        "name": text("of the transaction, as its client has given it; the name of a Spark query is its id"),
        "number": integer("of the transaction; of a Spark query: of the batch"),
        "part": text("of the transaction; each task of Spark has its own"),
        "user": text("whose transaction it is; empty: clients without a user name"),
        "tenant": text("of the user; empty: none"),
        "chunks": integer(),
        "bytes": integer("of all chunks"),
        "expires_in": number("seconds until the part is dropped, unless its transaction is committed before"),
    }
)


async def transactions(request: Request) -> dict[str, Any]:
    """The parts that wait, the first to expire at the front."""
    found = await request.node.broker.coordinator.transactions.parts(request.arguments["limit"])
    items = [
        {
            "name": part.transaction.name,
            "number": part.transaction.number,
            "part": part.part,
            "user": part.transaction.user,
            "tenant": part.transaction.tenant,
            "chunks": part.chunks,
            "bytes": part.size,
            "expires_in": max(0, part.expires_in) / 1000,
        }
        for part in found
    ]
    return {"items": items, "next": None}


OPERATIONS = (
    Operation(
        "GET",
        "/transactions",
        "transactions",
        "Parts of transactions that are staged and wait for their commit, the first to expire at the front.",
        transactions,
        listed(PART),
        arguments={"limit": LIMIT},
    ),
)
