"""The roles of the store: named rules. Two of them are general: `everyone` and `anonymous`."""

import json
from http import HTTPStatus
from typing import Any

from ....auth.access_store import Kind
from ....auth.roles import MAX_STORED
from ...http.problems import Problem, unfit
from .. import documents
from ..documents import AT_ONCE, MAX_IMPORTED_RULES, NAME, PAGE, RULES, Document, checked_rules
from ..operation import Operation, Request, listed
from ..schema import Schema, array, boolean, record, text
from .users import IMPORTED, ONE, VERSIONED

DESCRIPTION = text("for the operator", maxLength=1000)
ROLE = record(
    {
        "name": NAME,
        "rules": array(text("as a line of an ACL file")),
        "description": text("for the operator"),
        "version": text("changes with the role"),
    }
)
SETTINGS: dict[str, Schema] = {"rules": RULES, "description": DESCRIPTION}


def show(name: str, data: bytes) -> dict[str, Any]:
    """A role."""
    try:
        role = json.loads(data)
        rules, description = role["rules"], role.get("description", "")
    except (ValueError, KeyError, TypeError, AttributeError):  # written by another program
        rules, description = [], "unreadable"
    return {"name": name, "rules": rules, "description": description, "version": documents.version_of(data)}


async def roles(request: Request) -> dict[str, Any]:
    """The roles."""
    return await documents.listed(request, Kind.ROLE, show)


async def role(request: Request) -> dict[str, Any]:
    """One role."""
    return await documents.one(request, Kind.ROLE, show)


async def add(request: Request) -> dict[str, Any]:
    """Add a role."""
    body = request.body
    _check_room(request, 1)
    return await documents.create(request, Kind.ROLE, body["name"], _made(None, _given(body)), show)


async def change(request: Request) -> dict[str, Any]:
    """Change some properties of a role."""
    given = _given(request.body)
    return await documents.edit(request, Kind.ROLE, lambda before: _made(before, given), show)


async def remove(request: Request) -> None:
    """Remove a role."""
    await documents.remove(request, Kind.ROLE, show)


async def import_all(request: Request) -> dict[str, Any]:
    """Add several roles, or replace the given properties of those that exist."""
    body = request.body
    if sum(len(each["rules"]) for each in body["roles"]) > MAX_IMPORTED_RULES:
        raise unfit(f"roles: more than {MAX_IMPORTED_RULES} rules; send them in several requests")
    _check_room(request, sum(each["name"] not in request.node.access.roles for each in body["roles"]))
    given = [(each["name"], _given(each)) for each in body["roles"]]
    items = [(name, lambda before, new=new: _made(before, new)) for name, new in given]
    return await documents.put_all(request, Kind.ROLE, items, show, replace=body.get("replace", False))


def _check_room(request: Request, more: int) -> None:
    if len(request.node.access.roles) + more > MAX_STORED:
        raise Problem(HTTPStatus.CONFLICT, f"there can be {MAX_STORED} roles at most")


def _made(before: Document | None, given: Document) -> Document:
    return {"rules": [], "description": "", **(before or {}), **given}


def _given(body: dict[str, Any]) -> Document:
    found = {key: body[key] for key in SETTINGS if key in body}
    if "rules" in found:
        found["rules"] = checked_rules(found["rules"])
    return found


OPERATIONS = (
    Operation(
        "GET",
        "/roles",
        "roles",
        "Roles, in the order of their names.",
        roles,
        listed(ROLE),
        arguments=PAGE,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Operation(
        "GET",
        "/role",
        "role",
        "A role.",
        role,
        ROLE,
        arguments=ONE,
        required=("name",),
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "POST",
        "/roles",
        "add_role",
        "Add a role. `everyone` is a role of all clients, `anonymous` of clients without a user name.",
        add,
        ROLE,
        role="admin",
        body=record({"name": NAME, "rules": RULES}, {"description": DESCRIPTION}),
        problems=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "PATCH",
        "/role",
        "change_role",
        "Change the given properties of a role. It takes effect at once at all nodes, for connected clients, too.",
        change,
        ROLE,
        role="admin",
        arguments=VERSIONED,
        required=("name",),
        body=record({}, SETTINGS),
        problems=(
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.SERVICE_UNAVAILABLE,
        ),
    ),
    Operation(
        "DELETE",
        "/role",
        "remove_role",
        "Remove a role. Users keep its name; it gives them nothing then.",
        remove,
        role="admin",
        arguments=VERSIONED,
        required=("name",),
        problems=(
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.SERVICE_UNAVAILABLE,
        ),
    ),
    Operation(
        "POST",
        "/roles/import",
        "import_roles",
        "Add several roles. With `replace`, the given properties of roles that exist are replaced; without, they stay.",
        import_all,
        IMPORTED,
        role="admin",
        body=record(
            {"roles": array(record({"name": NAME, "rules": RULES}, {"description": DESCRIPTION}), maxItems=AT_ONCE)},
            {"replace": boolean("whether roles that exist are changed")},
        ),
        problems=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
)
