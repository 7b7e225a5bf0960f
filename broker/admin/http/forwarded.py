"""The addresses of clients behind reverse proxies, as `Forwarded` and `X-Forwarded-For` name them.

Each proxy appends the address that it was connected from. From the right, all up to the first address that is no
trusted proxy's is believed; a client can only have written the rest. A proxy passes on the header that it does not
know: if both are there and name different clients, neither is believed.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Middleware

from broker.listeners.bind import truster


def from_clients(networks: Iterable[str]) -> Middleware:
    """A middleware: `remote` of a request is the address of the client, if trusted proxies have passed it on."""
    trusts = truster(networks)

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        peer = request.remote or ""
        return await handler(request.clone(remote=client_of(request, peer, trusts)) if peer else request)

    return middleware


def client_of(request: web.BaseRequest, peer: str, trusts: Callable[[str], bool]) -> str:
    """The address of the client of a request.

    Args:
        request: with its headers.
        peer: address of the connection.
        trusts: whether HOST:PORT is a trusted proxy's.
    """
    headers = (
        [element.get("for", "") for element in request.forwarded],
        ",".join(request.headers.getall("X-Forwarded-For", ())).split(","),
    )
    names = ("Forwarded", "X-Forwarded-For")
    found = {_last(peer, chain, trusts) for name, chain in zip(names, headers, strict=True) if name in request.headers}
    return found.pop() if len(found) == 1 else peer


def _last(peer: str, chain: Sequence[str], trusts: Callable[[str], bool]) -> str:
    """The last address of a chain that is no trusted proxy's, or what comes before one that can't be read."""
    client = peer
    for text in reversed(chain):
        address = _address(text.strip())
        if not trusts(f"[{client}]:0") or not address:
            break
        client = address
    return client


def _address(text: str) -> str:
    """The IP address in ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT; "": there is none."""
    for host in (text, text.rpartition(":")[0]):
        try:
            found = ip_address(host.strip("[]"))
        except ValueError:
            continue
        return "" if "%" in text else str(getattr(found, "ipv4_mapped", None) or found)
    return ""
