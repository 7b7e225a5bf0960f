"""The audit log: the changes that were made, and their authors."""

import asyncio
import math
from typing import Any

from ....core.audit_record import RESULTS, Record
from ...http.tokens import KEY, LOGIN, PASSWORD, TOKEN
from ..operation import AFTER, LIMIT, Operation, Request, listed
from ..schema import Schema, integer, number, record, text

ANYTHING: Schema = {"description": "any JSON"}
MAX_LOOKED_AT = 20_000  # records that one request looks at ...
SLICE = 200  # ... in one go
RECORD = record(
    {
        "id": text("sorts by time"),
        "time": number("seconds since 1970"),
        "node": text("name of the node that made the change"),
        "by": text("name of the operator, key or token; of a command on Redis: the user of the operating system"),
        "role": text("of the operator, key or token"),
        "credential": text(
            "of the request, so whose name `by` is; empty: the change needs none",
            enum=[LOGIN, KEY, TOKEN, PASSWORD, ""],
        ),
        "tenant": text("of the token; empty: it is for the whole broker"),
        "address": text("of the request; empty: there was none"),
        "via": text("the way of the change", enum=["api", "page", "command", "agent", "signal", "file"]),
        "operation": text("name of the operation"),
        "arguments": {**ANYTHING, "description": "of the operation, without secrets and payloads"},
        "before": {**ANYTHING, "description": "the changed thing before, if the operation records it"},
        "after": {**ANYTHING, "description": "the changed thing after, or the result of the operation"},
        "result": text("unknown: the node has not reported an end of the operation", enum=list(RESULTS)),
        "detail": text("reason of a refusal or a failure"),
    }
)


async def audit_log(request: Request) -> dict[str, Any]:
    """Records, the newest first. A token of a tenant gets the changes by tokens of the tenant."""
    given = request.arguments
    limit, tenant = given["limit"], request.holder.tenant

    def is_wanted(found: Record) -> bool:
        return (
            (not tenant or found.tenant == tenant)
            and all(given.get(name) in (None, getattr(found, name)) for name in ("by", "operation", "result"))
            and given.get("since", found.time) <= found.time < given.get("until", math.inf)
        )

    found: list[Record] = []
    last = ""
    for count, each in enumerate(request.node.audit_log.newest(given["after"]), 1):
        if len(found) == limit or count > MAX_LOOKED_AT:
            break
        last = each.id
        found += [each] if is_wanted(each) else []
        if count % SLICE == 0:
            await asyncio.sleep(0)  # packets are served in between
    else:
        last = ""
    return {"items": [vars(each) for each in found], "next": last or None}


OPERATIONS = (
    Operation(
        "GET",
        "/audit-log",
        "audit_log",
        "The changes that were made by API, page, commands and reloads, the newest first.",
        audit_log,
        listed(RECORD),
        role="admin",
        changes=False,
        arguments={
            "by": text("only of this author", maxLength=256),
            "operation": text("only this operation", maxLength=64),
            "result": text("only with this result", enum=list(RESULTS)),
            "since": integer("only then or later: seconds since 1970", minimum=0),
            "until": integer("only before: seconds since 1970", minimum=0),
            "after": {**AFTER, "default": "", "pattern": r"^(\d{13}-.*)?$"},
            "limit": LIMIT,
        },
    ),
)
