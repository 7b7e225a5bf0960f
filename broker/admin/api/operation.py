"""The types of an operation of the API and of its request, and schemas that operations share.

Routes, validation and the OpenAPI description are derived from the rows."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from aiohttp import web

from ...core.tenants import ROOT as TENANTS
from ...core.tenants import prefix_of
from ...rpc.node_view import NodeView
from ..http.tokens import VIEWER, Holder
from .schema import EXPECTED, Schema, array, integer, record, table, text

ROOT = "/api/v1"
MAX_LIMIT = 1000
MAX_NAME = 8192  # characters of a name in a URL, where MQTT allows 65 535 bytes
# Not wildcards, NUL, or topics that only the broker publishes to.
TOPIC = {
    **text("a topic name", minLength=1, maxLength=MAX_NAME, pattern=r"^(?!\$SYS(/|$))[^+#\x00]+$"),
    EXPECTED: "be a topic name, without wildcards and outside of $SYS",
}
TOPIC_FILTER = text("a topic filter", minLength=1, maxLength=MAX_NAME, pattern=r"^[^\x00]+$")
CLIENT_ID = text("a client identifier", minLength=1, maxLength=MAX_NAME)
EVENTS = "text/event-stream"  # media type of server-sent events
ARROW = "application/vnd.apache.arrow.stream"
NO_TENANT = "/"  # as a name of a tenant, which none can have
TENANT = text(f"only what is of this tenant; `{NO_TENANT}`: of none", maxLength=200, default="")
LIMIT = integer("how many at most", minimum=1, maximum=MAX_LIMIT, default=100)
AFTER = text("`next` of the previous page", maxLength=2 * MAX_NAME + 1)
FAILURES = table(text(), "nodes that did not answer, and why: their items are missing")


@dataclass
class Change:
    """The changed thing, for the audit log; secrets in it are left out."""

    before: Any = None
    after: Any = None  # or the result of the operation


class Request(NamedTuple):
    """An authorized request for an operation."""

    node: NodeView
    holder: Holder
    arguments: dict[str, Any]  # of path and query
    body: dict[str, Any]
    raw: web.Request
    change: Change  # which the operation may complete

    @property
    def prefix(self) -> str:
        """The prefix of the names to list: of the token's tenant, else of the argument `tenant`; empty: all."""
        tenant = self.arguments.get("tenant", "")
        return prefix_of(self.holder.tenant or ("" if tenant == NO_TENANT else tenant))

    @property
    def scope(self) -> dict[str, str]:
        """Arguments of calls that list names: of a tenant, of none, or all."""
        without = TENANTS if not self.prefix and self.arguments.get("tenant") == NO_TENANT else ""
        return {"prefix": self.prefix, "without": without}


class Operation(NamedTuple):
    """A row. `handle` returns the JSON of the response, None for an empty one, or a whole response.

    Without `handle` the row only describes a request, which another part of the node handles.
    """

    method: str
    path: str  # below ROOT; an argument in braces is a segment of it
    name: str
    summary: str
    handle: Callable[[Request], Awaitable[Any]] | None
    answer: Schema | None = None
    role: str = VIEWER  # that the request needs; empty: none, and no credentials
    arguments: dict[str, Schema] = {}  # noqa: RUF012 - never changed
    required: tuple[str, ...] = ()  # of the arguments
    body: Schema | None = None
    problems: tuple[HTTPStatus, ...] = ()  # besides the responses of every operation
    clients: bool = False  # whether MQTT clients may use it, too, with the credentials of CONNECT
    changes: bool = True  # whether the audit log records it, unless its role is viewer
    seconds: float = 20.0  # timeout: requests that wait for a disk must not use up all connections
    stream: str = ""  # media type of a response that is sent in pieces; empty: JSON

    @property
    def is_audited(self) -> bool:
        """Whether the audit log records each use."""
        return self.role != VIEWER and self.changes

    def in_path(self, argument: str) -> bool:
        """Whether an argument is a segment of the path; all others are in the query."""
        return f"{{{argument}}}" in self.path

    @property
    def status(self) -> HTTPStatus:
        """Of a success."""
        return HTTPStatus.NO_CONTENT if self.answer is None and not self.stream else HTTPStatus.OK


def listed(items: Schema, total: str = "") -> Schema:
    """The schema of a page of a list."""
    return record(
        {"items": array(items), "next": {**AFTER, "type": ["string", "null"]}},
        {"total": integer(total or "number of all items"), "failures": FAILURES},
    )
