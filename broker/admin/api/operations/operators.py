"""Operators and API keys, with their roles."""

import time
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from aiohttp import web

from ....config.tenants import is_tenant
from ....core.audit_record import DONE, REFUSED
from ...http.authorization import Failures
from ...http.operators import MIN_PASSWORD, ApiKey, Operator, OperatorStore
from ...http.problems import Problem, missing, unfit
from ...http.tokens import ADMIN, KEY, NAME, ROLES, VIEWER, Holder
from .. import tenant_scope
from ..audited import author
from ..operation import Operation, Request
from ..schema import Schema, array, boolean, integer, nullable, number, record, text

OPERATORS = web.AppKey("operators", OperatorStore)
OWN_PASSWORD, WRONG = "change_own_password", "current: wrong password"
FAILURES = web.AppKey("failures", Failures)  # of addresses with wrong tokens and passwords
ALL = web.AppKey("operations", dict[str, Operation])  # of the API, by name
MAX_PASSWORD = 1024  # characters
MAX_OPERATORS, MAX_KEYS = 1000, 1000
CENTURY = 36_500 * 86_400
NAME_TEXT = text("letters, digits and ._@-", pattern=f"^{NAME.pattern}$", maxLength=64)
ROLE = text("each includes the roles before it", enum=list(ROLES))
TENANT = text("the tenant that it is for; empty: the whole broker", maxLength=200)
PASSWORD_TEXT = text(f"at least {MIN_PASSWORD} characters", minLength=MIN_PASSWORD, maxLength=MAX_PASSWORD)
OPERATOR_RECORD: dict[str, Schema] = {
    "name": text(), "role": ROLE, "tenant": text(), "disabled": boolean(), "since": number("seconds since 1970"),
}  # fmt: skip
KEY_RECORD: dict[str, Schema] = {
    "id": text(),
    "name": text(),
    "role": ROLE,
    "tenant": text(),
    "scopes": array(text(), "operations that it opens, by their names; empty: all of its role"),
    "until": nullable(number("seconds since 1970; null: forever")),
    "since": number("seconds since 1970"),
    "by": text("its author"),
}


def _operator(found: Operator) -> dict[str, Any]:
    return {name: getattr(found, name) for name in OPERATOR_RECORD}


def _key(found: ApiKey) -> dict[str, Any]:
    return {name: getattr(found, name) for name in KEY_RECORD}


def _store(request: Request) -> OperatorStore:
    return request.raw.app[OPERATORS]


def _tenant(body: dict[str, Any]) -> str:
    tenant = str(body.get("tenant", ""))
    if tenant and not is_tenant(tenant):
        raise unfit("tenant: one level of a topic, without wildcards")
    return tenant


async def operators(request: Request) -> dict[str, Any]:
    """All operators, by name."""
    return {"items": [_operator(each) for each in _store(request).operators()]}


async def add_operator(request: Request) -> dict[str, Any]:
    """Add an operator. The first one must be an administrator: from then on requests need credentials."""
    store, body = _store(request), request.body
    known = store.operators()
    if store.operator(body["name"]) is not None:
        raise Problem(HTTPStatus.CONFLICT, f"there is an operator {body['name']}")
    if any(key.name == body["name"] for key in store.api_keys()):
        raise _ambiguous(f"there is a key {body['name']}")
    if len(known) >= MAX_OPERATORS:
        raise Problem(HTTPStatus.CONFLICT, f"there are {MAX_OPERATORS} operators, the maximum")
    hashed = await store.hash(body["password"])
    found = Operator(body["name"], body["role"], _tenant(body), hashed, False, round(time.time(), 3))
    if not known and not found.is_admin:
        raise Problem(HTTPStatus.CONFLICT, "the first operator must be an administrator of the whole broker")
    await store.put_operator(found)
    return _operator(found)


async def change_operator(request: Request) -> dict[str, Any]:
    """Change role, tenant, password or state of an operator."""
    store, body = _store(request), request.body
    before = _existing(request)
    given: dict[str, Any] = {name: body[name] for name in ("role", "disabled") if name in body}
    if "tenant" in body:
        given["tenant"] = _tenant(body)
    if "password" in body:
        given["hash"] = await store.hash(body["password"])
    after = replace(before, **given)
    _judge_last(store, before, after)
    request.change.before, request.change.after = _operator(before), _operator(after)
    await store.put_operator(after)
    return _operator(after)


async def remove_operator(request: Request) -> None:
    """Remove an operator, who is logged out at once."""
    store = _store(request)
    before = _existing(request)
    _judge_last(store, before, None)
    request.change.before = _operator(before)
    await store.remove_operator(before.name)


def _existing(request: Request) -> Operator:
    found = _store(request).operator(request.arguments["name"])
    if found is None:
        raise missing("there is no such operator")
    return found


def _judge_last(store: OperatorStore, before: Operator, after: Operator | None) -> None:
    """Raises Problem: no administrator would be left."""
    others = [each for each in store.operators() if each.is_admin and each.name != before.name]
    if before.is_admin and not others and (after is None or not after.is_admin):
        raise Problem(HTTPStatus.CONFLICT, f"{before.name} is the last administrator: add another one first")


async def change_own_password(request: Request) -> None:
    """Change the password of the operator who asks; all logins of the operator end.

    Attempts that have to wait are not on record: a viewer must not push changes out of the audit log.
    """
    store, audit_log = _store(request), request.node.audit_log
    found = store.operator(request.holder.name)
    if found is None or request.holder.scopes:
        raise missing("only an operator who has logged in has a password")
    failures, address = request.raw.app[FAILURES], request.raw.remote or ""
    failures.judge_password(address)  # a stolen cookie must not be a way to guess the password
    if not await store.matches(found.stored, request.body["current"]):
        failures.add(address)
        audit_log.add(OWN_PASSWORD, result=REFUSED, detail=WRONG, minor=True, **author(request.holder, request.raw))
        raise unfit(WRONG)
    after = replace(found, hash=await store.hash(request.body["new_password"]))
    begun = audit_log.begin(OWN_PASSWORD, minor=False, **author(request.holder, request.raw))
    await store.put_operator(after)
    audit_log.end(begun, DONE, before=_operator(found), after=_operator(after))


async def keys(request: Request) -> dict[str, Any]:
    """All API keys, by name, without their secrets."""
    return {"items": [_key(each) for each in _store(request).api_keys()]}


async def add_key(request: Request) -> dict[str, Any]:
    """Make an API key. Its text is in this reply only."""
    store, body = _store(request), request.body
    tenant = _tenant(body)
    _judge_scopes(request, body.get("scopes", []), Holder(body["name"], body["role"], KEY, tenant))
    if store.operator(body["name"]) is not None:
        raise _ambiguous(f"there is an operator {body['name']}")
    if len(store.api_keys()) >= MAX_KEYS:
        raise Problem(HTTPStatus.CONFLICT, f"there are {MAX_KEYS} keys, the maximum")
    until = round(time.time() + body["seconds"], 3) if "seconds" in body else None
    key, secret = await store.add_key(
        name=body["name"],
        role=body["role"],
        tenant=tenant,
        scopes=body.get("scopes", []),
        until=until,
        by=request.holder.name,
    )
    request.change.after = _key(key)
    return {**_key(key), "key": secret}


def _judge_scopes(request: Request, scopes: list[str], holder: Holder) -> None:
    """Raises Problem: a scope is no operation, or one that the holder of the new key could never use."""
    for scope in scopes:
        operation = request.raw.app[ALL].get(scope)
        if operation is None:
            raise unfit(f"scopes: there is no operation {scope!r}; openapi.json has their names (operationId)")
        if not holder.has_role(operation.role):
            raise unfit(f"scopes: {scope} needs the role {operation.role}; the role of the key is {holder.role}")
        if holder.tenant and scope not in tenant_scope.OPERATIONS:
            raise unfit(f"scopes: {scope} is for the whole broker; the key is for the tenant {holder.tenant}")


def _ambiguous(reason: str) -> Problem:
    return Problem(HTTPStatus.CONFLICT, f"{reason}, and the audit log names authors by name: choose another name")


async def remove_key(request: Request) -> None:
    """End an API key."""
    found = await _store(request).remove_key(request.arguments["id"])
    if found is None:
        raise missing("there is no such key")
    request.change.before = _key(found)


OPERATIONS = (
    Operation(
        "GET",
        "/operators",
        "operators",
        "The people who manage the broker.",
        operators,
        record({"items": array(record(OPERATOR_RECORD))}),
        role=ADMIN,
        changes=False,
    ),
    Operation(
        "POST",
        "/operators",
        "add_operator",
        "Add an operator. With the first one, requests from this machine need a login or a token, too.",
        add_operator,
        record(OPERATOR_RECORD),
        role=ADMIN,
        body=record({"name": NAME_TEXT, "role": ROLE, "password": PASSWORD_TEXT}, {"tenant": TENANT}),
        problems=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    ),
    Operation(
        "PUT",
        "/operator",
        "change_operator",
        "Change role, tenant, password or state of an operator.",
        change_operator,
        record(OPERATOR_RECORD),
        role=ADMIN,
        arguments={"name": NAME_TEXT},
        required=("name",),
        body=record({}, {"role": ROLE, "tenant": TENANT, "password": PASSWORD_TEXT, "disabled": boolean()}),
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    ),
    Operation(
        "DELETE",
        "/operator",
        "remove_operator",
        "Remove an operator.",
        remove_operator,
        role=ADMIN,
        arguments={"name": NAME_TEXT},
        required=("name",),
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
    Operation(
        "PUT",
        "/me/password",
        OWN_PASSWORD,
        "Change the own password.",
        change_own_password,
        role=VIEWER,
        body=record({"current": text(maxLength=MAX_PASSWORD), "new_password": PASSWORD_TEXT}),
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.TOO_MANY_REQUESTS),
    ),
    Operation(
        "GET",
        "/keys",
        "keys",
        "API keys of programs.",
        keys,
        record({"items": array(record(KEY_RECORD))}),
        role=ADMIN,
        changes=False,
    ),
    Operation(
        "POST",
        "/keys",
        "add_key",
        "Make an API key. Only this reply has its text.",
        add_key,
        record({**KEY_RECORD, "key": text("to be sent as a bearer token")}),
        role=ADMIN,
        body=record(
            {"name": NAME_TEXT, "role": ROLE},
            {
                "tenant": TENANT,
                "scopes": array(text(maxLength=64), "operations, by the names in openapi.json", maxItems=100),
                "seconds": integer("after which it ends; without it, never", minimum=1, maximum=CENTURY),
            },
        ),
        problems=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    ),
    Operation(
        "DELETE",
        "/key",
        "remove_key",
        "End an API key.",
        remove_key,
        role=ADMIN,
        arguments={"id": text("of the key", maxLength=64)},
        required=("id",),
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
