"""The users of the store. Their password hashes never leave it."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from ....auth.access_store import Kind
from ....auth.credentials import make_credentials
from ....auth.passwords import MAX_PASSWORD, parse_hash
from ...http.problems import unfit
from .. import documents
from ..documents import AT_ONCE, MAX_IMPORTED_RULES, NAME, PAGE, ROLES, RULES, VERSION, Document, checked_rules
from ..operation import Operation, Request, listed
from ..schema import Schema, array, boolean, integer, nullable, record, text

USER = record(
    {
        "name": NAME,
        "rules": nullable(array(text("as a line of an ACL file"))),
        "roles": array(text("name of a role")),
        "disabled": boolean("whether its clients are refused"),
        "credentials": text("format of the stored password hash; empty: the stored user is unreadable"),
        "version": text("changes with the user"),
    }
)
SETTINGS: dict[str, Schema] = {
    "rules": {
        **nullable(RULES),
        "description": "null: none of its own; without roles, it may do all that general rules allow",
    },
    "roles": ROLES,
    "disabled": boolean("whether its clients are refused, and closed"),
}
CREDENTIALS: dict[str, Schema] = {
    "password": text("of the user; the node stores a hash", minLength=1, maxLength=MAX_PASSWORD),
    "scram": boolean("whether the password may be proven by SCRAM-SHA-256, too"),
    "hash": text("instead of the password: a hash as in a password file", maxLength=1000),
}
IMPORTED = record(
    {
        "created": integer("new ones"),
        "changed": integer("those that were replaced"),
        "equal": integer("those that were there in this form"),
        "existing": array(text(), "names that are there, and stay as they are"),
    }
)


def show(name: str, data: bytes) -> dict[str, Any]:
    """A user without its hash."""
    try:
        user = json.loads(data)
        scheme = parse_hash(str(user["hash"])).scheme
        rules, roles = user.get("rules"), user.get("roles", [])
    except (ValueError, KeyError, TypeError, AttributeError):  # written by another program
        user, scheme, rules, roles = {}, "", [], []
    return {
        "name": name,
        "rules": rules,
        "roles": roles,
        "disabled": bool(user.get("disabled", False)),
        "credentials": scheme,
        "version": documents.version_of(data),
    }


async def users(request: Request) -> dict[str, Any]:
    """The users."""
    return await documents.listed(request, Kind.USER, show)


async def user(request: Request) -> dict[str, Any]:
    """One user."""
    return await documents.one(request, Kind.USER, show)


async def add(request: Request) -> dict[str, Any]:
    """Add a user."""
    body = request.body
    given = await _given(body["name"], body)
    if "hash" not in given:
        raise unfit("password, or hash: one of them is needed")
    return await documents.create(request, Kind.USER, body["name"], _made(None, given), show)


async def change(request: Request) -> dict[str, Any]:
    """Change some properties of a user."""
    given = await _given(request.arguments["name"], request.body)
    return await documents.edit(request, Kind.USER, lambda before: _made(before, given), show)


async def remove(request: Request) -> None:
    """Remove a user."""
    await documents.remove(request, Kind.USER, show)


async def import_all(request: Request) -> dict[str, Any]:
    """Add several users, or replace the given properties of those that exist."""
    body = request.body
    if sum(len(each.get("rules") or ()) for each in body["users"]) > MAX_IMPORTED_RULES:
        raise unfit(f"users: more than {MAX_IMPORTED_RULES} rules; send them in several requests")
    given = [(each["name"], await _given(each["name"], each)) for each in body["users"]]
    items = [(name, lambda before, new=new: _made(before, new)) for name, new in given]
    return await documents.put_all(request, Kind.USER, items, show, replace=body.get("replace", False))


def _made(before: Document | None, given: Document) -> Document:
    return {"hash": "", "rules": None, "roles": [], "disabled": False, **(before or {}), **given}


async def _given(name: str, body: dict[str, Any]) -> Document:
    """The properties in a body as they are stored. Raises Problem."""
    found = {key: body[key] for key in SETTINGS if key in body}
    if found.get("rules") is not None:
        found["rules"] = checked_rules(found["rules"])
    if "roles" in found:
        found["roles"] = list(dict.fromkeys(found["roles"]))
    if "password" in body and "hash" in body:
        raise unfit("password, or hash: only one of them")
    try:
        if "hash" in body:
            found["hash"] = parse_hash(body["hash"]).text
        elif "password" in body:
            password, scram = body["password"].encode(), body.get("scram", False)
            found["hash"] = (await asyncio.to_thread(make_credentials, name, password, scram=scram)).text
    except ValueError as fault:
        raise unfit(f"{'hash' if 'hash' in body else 'password'}: {fault}") from None
    return found


ONE: dict[str, Schema] = {"name": NAME}
VERSIONED: dict[str, Schema] = {"name": NAME, "version": VERSION}
OPERATIONS = (
    Operation(
        "GET",
        "/users",
        "users",
        "Users of the store, in the order of their names.",
        users,
        listed(USER),
        arguments=PAGE,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Operation(
        "GET",
        "/user",
        "user",
        "A user.",
        user,
        USER,
        arguments=ONE,
        required=("name",),
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "POST",
        "/users",
        "add_user",
        "Add a user, with a password or a hash. A user that exists is not replaced.",
        add,
        USER,
        role="admin",
        body=record({"name": NAME}, {**CREDENTIALS, **SETTINGS}),
        problems=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        "PATCH",
        "/user",
        "change_user",
        "Change the given properties of a user. It takes effect at once at all nodes: rights of its connected clients "
        "are replaced; they are closed if it is disabled, or its password has changed.",
        change,
        USER,
        role="admin",
        arguments=VERSIONED,
        required=("name",),
        body=record({}, {**CREDENTIALS, **SETTINGS}),
        problems=(
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.SERVICE_UNAVAILABLE,
        ),
    ),
    Operation(
        "DELETE",
        "/user",
        "remove_user",
        "Remove a user; its clients are closed.",
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
        "/users/import",
        "import_users",
        "Add several users. With `replace`, the given properties of users that exist are replaced; without, they stay.",
        import_all,
        IMPORTED,
        role="admin",
        body=record(
            {"users": array(record({"name": NAME, "hash": CREDENTIALS["hash"]}, SETTINGS), maxItems=AT_ONCE)},
            {"replace": boolean("whether users that exist are changed")},
        ),
        problems=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
)
