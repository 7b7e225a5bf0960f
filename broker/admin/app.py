"""The HTTP application of a node: health, metrics, API, web page, and MQTT for the console of the page."""

import asyncio
from importlib import import_module
from types import ModuleType

from aiohttp import web

from ..errors import ConfigError
from ..rpc.node_view import NodeView
from . import page_files
from .api.api import OPERATIONS, Api, errors_as_problems
from .api.figures_stream import FiguresStream
from .api.operations.backup import UNDER_WAY
from .api.operations.events import FIGURES, STREAMS
from .api.operations.message_log import REPLIES, LogReplies
from .api.operations.operators import ALL, FAILURES, OPERATORS
from .console_socket import ConsoleSocket
from .exporters import health
from .http.authorization import AdminAuthorization
from .http.forwarded_requests import from_clients
from .http.headers import HEADERS
from .http.https import Https
from .http.operators import OperatorStore
from .http.server import MAX_BODY, HttpServer, in_time
from .http.tokens import Tokens
from .login import LoginPage


def make_server(node: NodeView) -> HttpServer:
    """The server of a node.

    Raises:
        ConfigError: the file of tokens, or the certificate, can't be used.
    """
    config = node.config.http
    operators = OperatorStore(node)
    authorization = AdminAuthorization(
        Tokens(config.tokens_file),
        operators,
        lambda: node.broker.data_plane.log_limiter,
        lambda: node.config.http.open_to_local,
        has_provider=bool(node.config.oidc.issuer),
    )
    login = LoginPage(node, authorization, operators)
    clients = [from_clients(config.trusted_proxies)] if config.trusted_proxies else []
    app = web.Application(middlewares=[errors_as_problems, in_time, *clients], client_max_size=MAX_BODY)
    app[FIGURES], app[STREAMS], app[UNDER_WAY] = FiguresStream(node), {}, asyncio.Lock()
    app[REPLIES] = LogReplies()
    app[FAILURES] = authorization.failures
    app[OPERATORS], app[ALL] = operators, {operation.name: operation for operation in OPERATIONS}
    app.on_cleanup.extend((app[REPLIES].close, operators.close))
    app.add_routes(login.routes())
    if node.config.oidc.issuer:
        oidc = _oidc().OidcLogin(node, login)
        app.add_routes(oidc.routes())
        app.on_cleanup.append(oidc.close)
    app.add_routes(health.routes(node, authorization))
    app.add_routes(Api(node, authorization, node.version, tokens=bool(config.tokens_file)).routes())
    app.add_routes(page_files.routes(authorization))
    app.add_routes([web.get("/mqtt", ConsoleSocket(node, authorization).handle, allow_head=False)])
    app.on_response_prepare.append(_secure)
    needs_tls = any(address.startswith("https://") for address in config.listen)
    tls = Https(lambda: node.config.tls).context if needs_tls else None
    return HttpServer(app, tls, lambda: authorization.failures.count, lambda: not authorization.needs_credentials)


def _oidc() -> ModuleType:
    try:
        return import_module("flockmq.broker.admin.oidc")
    except ModuleNotFoundError as error:
        raise ConfigError(f"oidc.issuer needs the package {error.name}", "pip install 'flockmq[auth]'") from error


async def _secure(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
