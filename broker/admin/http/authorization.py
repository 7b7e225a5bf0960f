"""Who may use the API and the page: holders of tokens; without a file of tokens, this machine.

- With `http.tokens_file` a bearer token says who asks. Wrong ones are counted by address, and soon held off.
- Without it, addresses that others reach serve neither API nor page. On loopback all is open, but only to who names
  this machine in `Host`: else a web page that is open in a browser here could come in by a name that it controls.
- A request that changes something must not come from another site's page: its `Origin` is ours, or there is none.
"""

import time
from collections import OrderedDict
from http import HTTPStatus
from urllib.parse import urlsplit

from aiohttp import web

from broker import logs
from broker.admin.http.problems import Problem
from broker.admin.http.server import Connection
from broker.admin.http.tokens import ROLES, Holder, Tokens

SAFE = frozenset({"GET", "HEAD"})
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
FREE_FAILURES = 5  # wrong tokens of an address before it is held off
HOLD_SECONDS = 1.0  # for the next one; twice as long for each further one ...
HOLD_SECONDS_MOST = 60.0  # ... up to this
FORGET_SECONDS = 300.0
ADDRESSES_MOST = 10_000  # that are remembered
SUBPROTOCOL = "flockmq.token."  # before a token among WebSocket's subprotocols, since browsers set no headers there
ANYBODY = Holder("this machine", ROLES[-1])

log = logs.get("flockmq.http")


class Failures:
    """Addresses that have shown wrong tokens."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()  # -> how many, when the last
        self.count = 0

    def wait(self, address: str) -> float:
        """Seconds until the address may try again."""
        number, last = self._known.get(address, (0, 0.0))
        if number < FREE_FAILURES:
            return 0.0
        hold: float = min(HOLD_SECONDS * 2.0 ** min(number - FREE_FAILURES, 10), HOLD_SECONDS_MOST)
        return max(0.0, last + hold - time.monotonic())

    def note(self, address: str) -> None:
        """One more."""
        now = time.monotonic()
        number, last = self._known.pop(address, (0, now))
        self._known[address] = (number + 1 if now - last < FORGET_SECONDS else 1, now)
        self.count += 1
        if len(self._known) > ADDRESSES_MOST:
            self._known.popitem(last=False)


class AdminAuthorization:
    """Judges requests.

    Args:
        tokens: who has one.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.failures = Failures()

    def judge(self, request: web.Request, role: str, *, is_socket: bool = False) -> Holder:
        """Who asks, if they may do what takes this role.

        Raises:
            Problem: they may not.
        """
        self._judge_origin(request, needed=is_socket or request.method not in SAFE)
        holder = self._holder(request) if self._tokens.wanted else self._neighbour(request)
        if ROLES.index(holder.role) < ROLES.index(role):
            raise Problem(HTTPStatus.FORBIDDEN, f"this takes a token of role {role}; {holder.name}'s is {holder.role}")
        return holder

    def judge_page(self, request: web.Request) -> None:
        """Whether the page's files may be read: they ask for a token by themselves.

        Raises:
            Problem: they may not.
        """
        if not self._tokens.wanted:
            self._neighbour(request)

    def judge_metrics(self, request: web.Request) -> None:
        """Whether the figures may be read, where they take a token.

        Raises:
            Problem: they may not.
        """
        if self._tokens.wanted:
            self._holder(request)
        else:
            self._neighbour(request)

    def _judge_origin(self, request: web.Request, *, needed: bool) -> None:
        if not needed:
            return
        origin = request.headers.get("Origin")
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if (origin is not None and origin.partition("://")[2] != request.host) or site not in ("same-origin", "none"):
            raise Problem(HTTPStatus.FORBIDDEN, "another site's page asks: only this node's own may")

    def _neighbour(self, request: web.Request) -> Holder:
        """Without tokens."""
        assert isinstance(request.protocol, Connection)
        if not request.protocol.is_near:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "others reach this address, so it takes tokens: make one with `flockmq token FILE NAME --role admin` "
                "and name the file in http.tokens_file; /healthz, /readyz and /metrics work without",
            )
        if host_name(request.host) not in LOCAL_NAMES:
            raise Problem(HTTPStatus.FORBIDDEN, "without tokens only this machine is served, by the name localhost")
        return ANYBODY

    def _holder(self, request: web.Request) -> Holder:
        token = shown(request)
        if token is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, "this takes a token", WWW_Authenticate="Bearer")
        holder = self._tokens.holder(token)
        if holder is None:
            raise self._failed(request)
        return holder  # also from an address that is held off: others there must not lock its owner out

    def _failed(self, request: web.Request) -> Problem:
        address = request.remote or ""
        wait = self.failures.wait(address)
        if wait > 0:
            return Problem(
                HTTPStatus.FORBIDDEN, "too many wrong tokens from this address", Retry_After=str(int(wait) + 1)
            )
        self.failures.note(address)
        log.warning("a wrong token was shown over HTTP", address=address, path=request.path)
        return Problem(HTTPStatus.UNAUTHORIZED, "nobody has this token", WWW_Authenticate="Bearer")


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def shown(request: web.Request) -> str | None:
    """The token that a request shows."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer" and token:
        return token.strip()
    for name in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
        if name.strip().startswith(SUBPROTOCOL):
            return name.strip().removeprefix(SUBPROTOCOL)
    return None
