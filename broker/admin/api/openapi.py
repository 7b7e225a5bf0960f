"""The description of the API (OpenAPI 3.1), built from its operations, which are checked by the same schemas."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from ..http import problems
from .operation import ARROW, EVENTS, ROOT, Operation
from .schema import integer, record, text

ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
STREAMS = {EVENTS: "server-sent events, each JSON", ARROW: "an Arrow IPC stream"}  # others are files
WITH_BODY = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
PROBLEM = record({"type": text(), "title": text(), "status": integer(), "detail": text()})


def description(operations: Iterable[Operation], version: str, *, tokens: bool) -> dict[str, Any]:
    """The whole document.

    Args:
        operations: of the API.
        version: of FlockMQ.
        tokens: whether requests need them.
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        found = paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
        if tokens and operation.clients:
            found["security"] = [{"token": []}, {"user": []}]
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "FlockMQ",
            "version": version,
            "description": "State and control of a FlockMQ broker. Every node of a cluster serves it for all nodes.",
        },
        "servers": [{"url": ROOT}],
        "paths": paths,
        "components": {"schemas": {"Problem": PROBLEM}},
    }
    if tokens:
        document["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "user": {"type": "http", "scheme": "basic"},
        }
        document["security"] = [{"token": []}]
    return document


def _operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        **({"x-role": operation.role} if operation.role else {"security": []}),
        "responses": {str(operation.status.value): _answer(operation), **_problems(operation)},
    }
    if operation.arguments:
        found["parameters"] = [
            {
                "name": name,
                "in": "path" if operation.in_path(name) else "query",
                "required": name in operation.required,
                "schema": schema,
            }
            for name, schema in operation.arguments.items()
        ]
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": operation.body}}}
    return found


def _answer(operation: Operation) -> dict[str, Any]:
    if operation.stream:
        described = STREAMS.get(operation.stream, "the file")
        return {"description": described, "content": {operation.stream: {}}}
    if operation.answer is None:
        return {"description": "done"}
    return {"description": "the answer", "content": {"application/json": {"schema": operation.answer}}}


def _problems(operation: Operation) -> dict[str, Any]:
    statuses = [*ALWAYS, *(WITH_BODY if operation.body is not None else ()), *operation.problems]
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        str(status.value): {"description": status.phrase, "content": {problems.KIND: {"schema": schema}}}
        for status in statuses
    }
