"""Errors of the API: problem details for HTTP APIs [RFC 9457]."""

import json
from http import HTTPStatus
from typing import Any

from aiohttp import web

from .tokens import Holder

KIND = "application/problem+json"


class Problem(Exception):
    """A refused request, with the reason for its sender.

    Attributes:
        members: more members of the body.
    """

    def __init__(self, status: HTTPStatus, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.members: dict[str, Any] = {}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class LacksRight(Problem):
    """A request that its known sender may not make.

    Attributes:
        holder: sender of the request.
    """

    def __init__(self, detail: str, holder: Holder) -> None:
        super().__init__(HTTPStatus.FORBIDDEN, detail)
        self.holder = holder


def response(problem: Problem) -> web.Response:
    """The problem as a response."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": problem.status.phrase,
        "status": problem.status.value,
        "detail": problem.detail,
        **problem.members,
    }
    return web.Response(
        status=problem.status, body=json.dumps(body).encode(), content_type=KIND, headers=problem.headers
    )


def bad_request(detail: str) -> Problem:
    """The request doesn't fit the description."""
    return Problem(HTTPStatus.BAD_REQUEST, detail)


def missing(detail: str) -> Problem:
    """The object does not exist."""
    return Problem(HTTPStatus.NOT_FOUND, detail)


def whole_broker(holder: Holder) -> Problem:
    """The request is for more than a tenant's own."""
    return LacksRight("this is of the whole broker: it needs a token without a tenant", holder)


def unfit(detail: str) -> Problem:
    """The request fits the description, but has an invalid value."""
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
