"""/healthz, /readyz and /metrics: for load balancers, orchestrators and Prometheus."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from inspect import isawaitable

from aiohttp import web

from ... import logs
from ...rpc.node_view import NodeView
from ..http.authorization import AdminAuthorization
from . import prometheus, shared_address

HEADERS = {"Cache-Control": "no-store", "Connection": "close"}

log = logs.get("flockmq.http")
Answer = tuple[HTTPStatus, str, str]  # status, text, content type
Page = Callable[[], Answer | Awaitable[Answer]]
PLAIN = "text/plain; charset=utf-8"


def check(is_well: Callable[[], tuple[bool, str]]) -> Page:
    """A page with status 200 or 503, and the reason in one line."""

    def answer() -> Answer:
        good, reason = is_well()
        return (HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE), logs.escaped(reason) + "\n", PLAIN

    return answer


def handler(page: Page) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler for the page; exceptions are logged."""

    async def handle(request: web.Request) -> web.Response:
        try:
            answer = page()
            status, text, kind = await answer if isawaitable(answer) else answer
        except Exception:
            log.exception("internal error: a page failed", path=request.path)
            status, text, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; see the log of the node\n", PLAIN
        response = web.Response(status=status, body=text.encode(), headers={**HEADERS, "Content-Type": kind})
        response.force_close()
        return response

    return handle


def routes(node: NodeView, authorization: AdminAuthorization) -> list[web.RouteDef]:
    """The three routes."""

    async def all_metrics() -> Answer:
        return HTTPStatus.OK, await shared_address.page(node), prometheus.KIND

    figures = handler(all_metrics)

    async def metrics(request: web.Request) -> web.Response:
        if node.config.http.metrics_token:
            authorization.judge_metrics(request)
        return await figures(request)

    return [
        web.get("/healthz", handler(check(lambda: (True, "the process works")))),
        web.get(
            "/readyz",
            handler(check(lambda: node.broker.ready() if node.serving else (False, "the node is starting"))),
        ),
        web.get("/metrics", metrics),
    ]
