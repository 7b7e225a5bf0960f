"""The API: finds the operation, authorizes the request, checks it against the description, and responds in JSON."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web

from ... import logs
from ...core.audit_record import public
from ...errors import NotNow
from ...rpc.node_view import NodeView
from ..http import problems
from ..http.authorization import AdminAuthorization
from ..http.clients import ClientAuthorization
from ..http.problems import LacksRight, Problem, bad_request
from ..http.server import MAX_BODY, REQUEST_SECONDS
from ..http.serving import judge_serving
from ..http.tokens import VIEWER, Holder
from . import tenant_scope
from .audited import Refusals, audited
from .openapi import description
from .operation import ROOT, Operation, Request
from .operations import (
    audit_log,
    backup,
    bans,
    clients,
    delayed,
    doctor,
    events,
    groups,
    limits,
    links,
    log_readers,
    message_log,
    messages,
    nodes,
    operators,
    requests,
    retained,
    roles,
    rules,
    settings,
    sign_in,
    slow_clients,
    subscriptions,
    tenants,
    transactions,
    users,
    wills,
)
from .schema import BODY, Schema, check

OPERATIONS: tuple[Operation, ...] = (
    *nodes.OPERATIONS,
    *clients.OPERATIONS,
    *requests.OPERATIONS,
    *slow_clients.OPERATIONS,
    *tenants.OPERATIONS,
    *subscriptions.OPERATIONS,
    *groups.OPERATIONS,
    *links.OPERATIONS,
    *limits.OPERATIONS,
    *wills.OPERATIONS,
    *delayed.OPERATIONS,
    *transactions.OPERATIONS,
    *log_readers.OPERATIONS,
    *retained.OPERATIONS,
    *messages.OPERATIONS,
    *message_log.OPERATIONS,
    *bans.OPERATIONS,
    *users.OPERATIONS,
    *roles.OPERATIONS,
    *rules.OPERATIONS,
    *settings.OPERATIONS,
    *operators.OPERATIONS,
    *audit_log.OPERATIONS,
    *events.OPERATIONS,
    *doctor.OPERATIONS,
    *backup.OPERATIONS,
)
DESCRIBED = (*OPERATIONS, *sign_in.OPERATIONS)
MAX_SHOWN = 200  # characters of a path in an error
NO_STORE = {"Cache-Control": "no-store"}

log = logs.get("flockmq.http")


class Api:
    """The operations as routes.

    Args:
        node: of the API.
        authorization: of requests.
        version: of FlockMQ.
        tokens: whether requests need them.
    """

    def __init__(self, node: NodeView, authorization: AdminAuthorization, version: str, *, tokens: bool) -> None:
        self._node = node
        self._authorization = authorization
        self._clients = ClientAuthorization(node, authorization)
        self._refusals = Refusals()
        self._description = json.dumps(description(DESCRIBED, version, tokens=tokens)).encode()

    def routes(self) -> list[web.RouteDef]:
        """All routes."""
        found = [web.route(op.method, ROOT + op.path, self._handler(op)) for op in OPERATIONS]
        return [*found, web.get(f"{ROOT}/openapi.json", self._describe, allow_head=False)]

    async def _authorized(self, raw: web.Request, role: str) -> Holder:
        return self._authorization.judge(raw, role)

    async def _describe(self, request: web.Request) -> web.Response:
        self._authorization.judge(request, VIEWER)
        return web.Response(body=self._description, content_type="application/json", headers=NO_STORE)

    def _handler(self, operation: Operation) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(raw: web.Request) -> web.StreamResponse:
            judge = self._clients.judge if operation.clients else self._authorized
            try:
                holder = await judge(raw, operation.role)
                tenant_scope.judge(operation.name, holder)
                judge_scope(operation, holder)
            except LacksRight as refusal:
                if operation.is_audited:
                    self._refusals.record(self._node, operation.name, refusal.holder, raw, refusal.detail)
                raise
            judge_serving(self._node)
            arguments = read_arguments(operation, raw)
            body = await read_body(operation.body, raw) if operation.body is not None else {}
            given = {**arguments, **body}
            if operation.role != VIEWER:
                log.info(
                    "operation requested over HTTP",
                    operation=operation.name,
                    by=holder.name,
                    address=raw.remote,
                    arguments=json.dumps(public(given)),
                )
            if holder.tenant:
                arguments, body = (tenant_scope.qualified(holder.tenant, given) for given in (arguments, body))
            with audited(self._node, operation, holder, raw, given) as change:
                found = await _done(operation, Request(self._node, holder, arguments, body, raw, change))
                if change.after is None and not isinstance(found, web.StreamResponse):
                    change.after = found
            if isinstance(found, web.StreamResponse):
                return found
            if holder.tenant:
                found = tenant_scope.shown(holder.tenant, found)
            if found is None:
                return web.Response(status=HTTPStatus.NO_CONTENT, headers=NO_STORE)
            return web.json_response(found, headers=NO_STORE)

        return handle


def judge_scope(operation: Operation, holder: Holder) -> None:
    """Raises LacksRight: it is an API key without this operation among its scopes."""
    if holder.scopes and operation.name not in holder.scopes:
        raise LacksRight(f"the key {holder.name} does not open the operation {operation.name}", holder)


async def _done(operation: Operation, request: Request) -> Any:
    """The result of an operation, in time."""
    assert operation.handle is not None
    try:
        async with asyncio.timeout(None if operation.stream else operation.seconds):
            return await operation.handle(request)
    except NotNow as error:
        open_end = "; the change may have been made or not" if operation.is_audited else ""
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}{open_end}", Retry_After="1") from error
    except TimeoutError:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the store does not respond; it may complete later") from None


def read_arguments(operation: Operation, raw: web.Request) -> dict[str, Any]:
    """The arguments with their types; missing ones have their defaults, if there are any."""
    arguments = {name: schema["default"] for name, schema in operation.arguments.items() if "default" in schema}
    given = {name: raw.query.getall(name) for name in raw.query}
    for name, values in [*given.items(), *((name, [value]) for name, value in raw.match_info.items())]:
        schema = operation.arguments.get(name)
        is_list = schema is not None and schema["type"] == "array"
        if schema is None or (len(values) > 1 and not is_list) or (name in given and operation.in_path(name)):
            raise bad_request(f"{name!r} is given twice, or unknown; known are {', '.join(operation.arguments)}")
        try:
            arguments[name] = values if is_list else _typed(schema, values[0], name)
            check(schema, arguments[name], name)
        except ValueError as fault:
            raise bad_request(str(fault)) from None
    for name in operation.required:
        if name not in arguments:
            raise bad_request(f"{name} is missing")
    return arguments


def _typed(schema: Schema, value: str, name: str) -> Any:
    if schema["type"] == "integer":
        if not (value.isascii() and value.lstrip("-").isdigit() and len(value) < 20):
            raise ValueError(f"{name} must be a whole number, not {value!r}")
        return int(value)
    if schema["type"] == "boolean":
        if value not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return value == "true"
    return value


async def read_body(schema: Schema, raw: web.Request) -> dict[str, Any]:
    """The body, checked against the schema."""
    if raw.content_type != "application/json":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            data = await raw.read()
        body = json.loads(data.decode("utf-8"), parse_constant=_no_number, parse_float=_number)
    except TimeoutError:
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, "the body was not received in time") from None
    except (ValueError, RecursionError) as fault:
        raise bad_request(f"the body is not JSON: {fault}") from None
    try:
        check(schema, body, BODY)
    except (ValueError, RecursionError) as fault:
        raise bad_request(str(fault)) from None
    assert isinstance(body, dict)
    return body


def _number(digits: str) -> int | float:
    """2.0 is a whole number, too."""
    found = float(digits)
    if math.isinf(found):
        raise ValueError(f"{digits} is too large for a number")
    return int(found) if found.is_integer() else found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _detail(request: web.Request, error: web.HTTPException) -> str:
    """The reason of an error that aiohttp raised."""
    path = request.path if len(request.path) <= MAX_SHOWN else f"{request.path[:MAX_SHOWN]}..."
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{path} takes {', '.join(sorted(error.allowed_methods))}, not {error.method}"
    if isinstance(error, web.HTTPNotFound):
        return f"{path} is not there; {ROOT}/openapi.json describes what is"
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return f"a body has at most {MAX_BODY >> 20} MiB"
    return error.reason


@web.middleware
async def errors_as_problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Return errors in one form."""
    try:
        return await handler(request)
    except Problem as problem:
        return problems.response(problem)
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        found = problems.response(Problem(HTTPStatus(error.status), _detail(request, error)))
        found.headers.update(allow)
        return found
    except ConnectionError:
        raise
    except Exception:
        log.exception("internal error: a request over HTTP failed", path=request.path)
        return problems.response(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "this failed; see the log of the node"))
