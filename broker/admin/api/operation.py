"""What the API can do: a row an operation. Routes, validation and the OpenAPI description are derived from the rows."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, NamedTuple

from aiohttp import web

from broker.admin.api.schema import Schema, array, integer, record, table, text
from broker.admin.http.tokens import Holder
from broker.rpc.node_view import NodeView

ROOT = "/api/v1"
LIMIT_MOST = 1000
LONGEST = 8192  # characters of a name in a URL, where MQTT allows 65 535 bytes
# What no client can publish to: wildcards, NUL, what the broker keeps for itself.
TOPIC = text("a topic name", minLength=1, maxLength=LONGEST, pattern=r"^(?!\$SYS(/|$))[^+#\x00]+$")
TOPIC_FILTER = text("a topic filter", minLength=1, maxLength=LONGEST, pattern=r"^[^\x00]+$")
CLIENT_ID = text("a client identifier", minLength=1, maxLength=LONGEST)
LIMIT = integer("how many at most", minimum=1, maximum=LIMIT_MOST, default=100)
AFTER = text("what `next` of the page before said", maxLength=2 * LONGEST + 1)
FAILURES = table(text(), "nodes that did not answer, and why: what they know is missing here")


class Request(NamedTuple):
    """An operation that is asked for, by somebody who may."""

    node: NodeView
    holder: Holder
    arguments: dict[str, Any]  # of the query
    body: dict[str, Any]
    raw: web.Request


class Operation(NamedTuple):
    """A row. `handle` returns what is answered as JSON, None: nothing; or a whole response."""

    method: str
    path: str  # below ROOT
    name: str
    summary: str
    handle: Callable[[Request], Awaitable[Any]]
    answer: Schema | None = None
    role: str = "read"
    arguments: dict[str, Schema] = {}  # noqa: RUF012 - nobody changes it
    required: tuple[str, ...] = ()  # of the arguments
    body: Schema | None = None
    problems: tuple[HTTPStatus, ...] = ()  # beside those that every operation may have
    stream: bool = False  # the answer is events, without end

    @property
    def status(self) -> HTTPStatus:
        """When it was done."""
        return HTTPStatus.NO_CONTENT if self.answer is None and not self.stream else HTTPStatus.OK


def listed(items: Schema, total: str = "") -> Schema:
    """The schema of a page of a list."""
    return record(
        {"items": array(items), "next": {**AFTER, "type": ["string", "null"]}},
        {"total": integer(total or "how many there are"), "failures": FAILURES},
    )
