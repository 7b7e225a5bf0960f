"""A middleware: `remote` of a request is the address of the client, if trusted proxies have passed the request on."""

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Middleware

from ...listeners.bind import truster
from ...listeners.forwarded import client_of


def from_clients(networks: Iterable[str]) -> Middleware:
    """The middleware, for proxies of these networks."""
    trusts = truster(networks)

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not request.remote:
            return await handler(request)
        forwarded, others = (request.headers.getall(name, []) for name in ("Forwarded", "X-Forwarded-For"))
        return await handler(request.clone(remote=client_of(forwarded, others, request.remote, trusts)))

    return middleware
