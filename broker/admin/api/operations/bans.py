"""The list of bans."""

import time
from http import HTTPStatus
from typing import Any

from ....auth.bans import KINDS, MAX_BANS, Ban, network
from ...http.problems import Problem, missing, unfit
from ...http.tokens import OPERATOR
from ..operation import MAX_NAME, Operation, Request
from ..schema import Schema, array, integer, nullable, number, record, text

KIND = text("kind of the value", enum=list(KINDS))
VALUE = text(
    "the client identifier, user name, or address or network such as 192.0.2.0/24", minLength=1, maxLength=MAX_NAME
)
MAX_TENANT_BANS = 1000  # that tokens of one tenant may make
CENTURY = 36_500 * 86_400
BAN = record(
    {
        "kind": KIND,
        "value": text(),
        "reason": text(),
        "since": number("seconds since 1970"),
        "until": nullable(number("seconds since 1970; null: forever")),
        "by": text("name of the token"),
    }
)
NEW: dict[str, Schema] = {
    "seconds": integer("duration; without it, forever", minimum=1, maximum=CENTURY),
    "reason": text("for the operator", maxLength=1000),
}


async def bans(request: Request) -> dict[str, Any]:
    """All bans, or only the bans of the token's tenant."""
    prefix, own = request.prefix, [ban for ban in request.node.broker.bans if ban.value.startswith(request.prefix)]
    return {"items": [_of_tenant(ban, prefix)._asdict() if prefix else ban._asdict() for ban in own]}


def _of_tenant(ban: Ban, prefix: str) -> Ban:
    """A ban with the name that clients know; names of operators' tokens are theirs."""
    return ban._replace(
        value=ban.value.removeprefix(prefix), by=ban.by.removeprefix(prefix) if ban.by.startswith(prefix) else ""
    )


async def ban(request: Request) -> dict[str, Any]:
    """Add a ban, or replace one of the same value."""
    body, known = request.body, request.node.broker.bans
    if len(known) >= MAX_BANS:
        raise Problem(HTTPStatus.CONFLICT, f"there are {MAX_BANS} bans, the maximum")
    prefix = request.prefix
    if prefix and sum(each.value.startswith(prefix) for each in known) >= MAX_TENANT_BANS:
        raise Problem(HTTPStatus.CONFLICT, f"there are {MAX_TENANT_BANS} bans, the maximum")
    now = round(time.time(), 3)
    until = now + body["seconds"] if "seconds" in body else None
    found = Ban(body["kind"], _value(body), body.get("reason", ""), now, until, prefix + request.holder.name)
    request.change.before = [each._asdict() for each in known if each.key == found.key]
    await known.add(found)
    return _of_tenant(found, prefix)._asdict() if prefix else found._asdict()


async def unban(request: Request) -> None:
    """Remove a ban."""
    known, kind, value = request.node.broker.bans, request.arguments["kind"], _value(request.arguments)
    request.change.before = [each._asdict() for each in known if (each.kind, each.value) == (kind, value)]
    if not await known.remove(kind, value):
        raise missing("there is no such ban")


def _value(given: dict[str, Any]) -> str:
    if given["kind"] != "address":
        return str(given["value"])
    try:
        return network(given["value"])
    except ValueError as error:
        raise unfit(f"value must be an address or a network: {error}") from None


OPERATIONS = (
    Operation("GET", "/bans", "bans", "All bans.", bans, record({"items": array(BAN)})),
    Operation(
        "POST",
        "/bans",
        "ban",
        "Ban clients; those connected are closed.",
        ban,
        BAN,
        role=OPERATOR,
        body=record({"kind": KIND, "value": VALUE}, NEW),
        problems=(HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.CONFLICT),
    ),
    Operation(
        "DELETE",
        "/bans",
        "unban",
        "Remove a ban.",
        unban,
        role=OPERATOR,
        arguments={"kind": KIND, "value": VALUE},
        required=("kind", "value"),
        problems=(HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_FOUND),
    ),
)
