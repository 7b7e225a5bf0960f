"""Authorization for the API and the page: holders of tokens and API keys, operators; without these, this machine.

- With `http.tokens_file`, or with operators, a request needs a bearer token (also an API key) or the cookie of a login.
  Wrong tokens are counted by address, and soon delayed.
- Without them, addresses that other machines reach serve neither API nor page. On loopback all is open, but `Host` must
  name this machine: else a web page in a browser here could get access by a DNS name that it controls. And nothing may
  show that a proxy on this machine has passed the request on: a proxy often sends its own `Host`.
- A request must not be from another site's page: its `Origin` is this node, or absent. With a cookie, a request that
  changes something must say that its page is the node's own.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import HttpVersion11, web

from ... import logs
from ...core.log_limiter import LogLimiter
from .cookies import Cookie
from .problems import LacksRight, Problem, whole_broker
from .server import Connection
from .tokens import ADMIN, VIEWER, Holder, Tokens

# Headers that proxies add: with the address of a client, or their own name.
FORWARDED = re.compile(
    r"via|cdn-loop|x-(?:real|envoy)-.*|.*forwarded.*|(?:.*-)?(?:client|connecting|remote)-ip", re.IGNORECASE
)
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
FREE_FAILURES = 5  # wrong tokens of an address before it is delayed
HOLD_SECONDS = 1.0  # for the next one; twice as long for each further one ...
MAX_HOLD_SECONDS = 60.0  # ... up to this
FORGET_SECONDS = 300.0
MAX_ADDRESSES = 10_000  # whose failures are counted
SUBPROTOCOL = "flockmq.token."  # before a token among WebSocket's subprotocols, since browsers set no headers there
LOGIN_COOKIE = Cookie("flockmq_login", "/", "Strict")
SAFE_METHODS = ("GET", "HEAD")
LOCAL_USER = Holder("this machine", ADMIN, "")
LOCAL_READER = Holder("this machine", VIEWER, "")

log = logs.get("flockmq.http")


class Failures:
    """Addresses that have sent wrong tokens."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()  # address -> failures, time of the last
        self.count = 0

    def wait(self, address: str) -> float:
        """Seconds until the address may try again."""
        number, last = self._known.get(address, (0, 0.0))
        if number < FREE_FAILURES:
            return 0.0
        hold: float = min(HOLD_SECONDS * 2.0 ** min(number - FREE_FAILURES, 10), MAX_HOLD_SECONDS)
        return max(0.0, last + hold - time.monotonic())

    def judge_password(self, address: str) -> None:
        """Raises Problem: the address has to wait before its next password."""
        wait = self.wait(address)
        if wait > 0:
            detail = "too many wrong passwords from this address"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, Retry_After=str(int(wait) + 1))

    def add(self, address: str) -> None:
        """Count a failure."""
        now = time.monotonic()
        number, last = self._known.pop(address, (0, now))
        self._known[address] = (number + 1 if now - last < FORGET_SECONDS else 1, now)
        self.count += 1
        if len(self._known) > MAX_ADDRESSES:
            self._known.popitem(last=False)


class Operators(Protocol):
    """The logins of operators, and the API keys."""

    @property
    def is_used(self) -> bool:
        """Whether there are operators: requests need credentials then."""

    def login(self, secret: str) -> Holder | None:
        """The holder of a login that is valid now."""

    def key(self, text: str) -> Holder | None:
        """The holder of an API key that is valid now."""


class AdminAuthorization:
    """Authorizes requests.

    Args:
        tokens: of the node.
        operators: of the node.
        log_limiter: returns addresses whose lines in the log are summed up.
        is_open: whether this machine may read without credentials, although others need some.
        has_provider: whether operators sign in at an identity provider.
    """

    def __init__(
        self,
        tokens: Tokens,
        operators: Operators,
        log_limiter: Callable[[], LogLimiter],
        is_open: Callable[[], bool] = lambda: False,
        *,
        has_provider: bool = False,
    ) -> None:
        self._tokens = tokens
        self._operators = operators
        self._log_limiter = log_limiter
        self._is_open = is_open
        self._has_provider = has_provider
        self.failures = Failures()

    def judge(self, request: web.Request, role: str, *, is_socket: bool = False) -> Holder:
        """The holder of the token, if it has this role.

        Raises:
            Problem: the request is refused.
        """
        judge_origin(request)
        holder = self._holder(request) if self.needs_credentials else self._local(request)
        if not holder.has_role(role):
            raise LacksRight(f"this needs the role {role}; the role of {holder.name} is {holder.role}", holder)
        if is_socket and holder.tenant:  # the console is a client of a listener, of any tenant
            raise whole_broker(holder)
        return holder

    @property
    def needs_credentials(self) -> bool:
        """Whether requests need a token, a key or a login."""
        return self._tokens.wanted or self._has_provider or self._operators.is_used

    def knows(self, request: web.Request) -> bool:
        """Whether credentials of a holder are in the request."""
        return self._known(request) is not None

    def judge_reachable(self, request: web.Request) -> None:
        """Allow an attempt to log in.

        Raises:
            Problem: there is no operator, and the request is not from this machine.
        """
        if not self.needs_credentials:
            self._local(request)

    def is_local(self, request: web.Request) -> bool:
        """Whether a program of this machine sent the request, and no proxy has passed it on."""
        try:
            self._local(request)
        except Problem:
            return False
        return True

    def judge_local(self, request: web.Request) -> Holder | None:
        """The holder for a request without credentials, if no tokens are needed; None: these are needed.

        Raises:
            Problem: the request is from another site's page.
        """
        judge_origin(request)
        return LOCAL_USER if not self.needs_credentials and self.is_local(request) else None

    def judge_page(self, request: web.Request) -> None:
        """Allow reading the files of the page, which ask for a token themselves.

        Raises:
            Problem: the request is refused.
        """
        if not self.needs_credentials:
            self._local(request)

    def judge_metrics(self, request: web.Request) -> None:
        """Allow reading the metrics, if they need a token.

        Raises:
            Problem: the request is refused.
        """
        judge_origin(request)
        if self.needs_credentials:
            holder = self._holder(request)
            if holder.tenant:
                raise whole_broker(holder)
        else:
            self._local(request)

    def _local(self, request: web.Request) -> Holder:
        """The holder without tokens: this machine."""
        assert isinstance(request.protocol, Connection)
        if not request.protocol.is_local:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "other machines reach this address, so it needs tokens: make one with "
                "`flockmq token FILE NAME --role admin` and name the file in http.tokens_file; "
                "/healthz, /readyz and /metrics work without",
            )
        if host_name(request.host) not in LOCAL_NAMES:
            raise Problem(HTTPStatus.FORBIDDEN, "without tokens only this machine is served, by the name localhost")
        if request.version < HttpVersion11 or any(map(FORWARDED.fullmatch, request.headers)):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "a proxy has passed this request on, by HTTP/1.0 or with a forwarding header, and there are no tokens: "
                "make one with `flockmq token FILE NAME --role admin` and name the file in http.tokens_file",
            )
        return LOCAL_USER

    def _known(self, request: web.Request) -> Holder | None:
        """The holder of the token, the key or the login in a request."""
        token = shown(request)
        if token is not None:
            return self._operators.key(token) or (self._tokens.holder(token) if self._tokens.wanted else None)
        secret = LOGIN_COOKIE.of(request)
        holder = self._operators.login(secret) if secret else None
        if holder is not None and request.method not in SAFE_METHODS and not is_from_page(request):
            raise Problem(HTTPStatus.FORBIDDEN, "with a login only the page of this node may change something")
        return holder

    def _holder(self, request: web.Request) -> Holder:
        holder = self._known(request)
        if holder is not None:
            return holder  # also from a delayed address: other hosts behind it must not lock its owner out
        if shown(request) is not None:
            raise self._failed(request)
        if self._is_open() and self.is_local(request):
            return LOCAL_READER
        raise Problem(HTTPStatus.UNAUTHORIZED, "this needs a login or a token", WWW_Authenticate="Bearer")

    def _failed(self, request: web.Request) -> Problem:
        address = request.remote or ""
        wait = self.failures.wait(address)
        if wait > 0:
            return Problem(
                HTTPStatus.FORBIDDEN, "too many wrong tokens from this address", Retry_After=str(int(wait) + 1)
            )
        self.failures.add(address)
        self._log_limiter().write(log.warning, "wrong token over HTTP", address=address, path=request.path)
        return Problem(HTTPStatus.UNAUTHORIZED, "unknown token", WWW_Authenticate="Bearer")


def judge_origin(request: web.Request) -> None:
    """Raises Problem: the request is from another site's page."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if (origin is not None and origin.partition("://")[2] != request.host) or site not in ("same-origin", "none"):
        raise Problem(HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused")


def is_from_page(request: web.Request) -> bool:
    """Whether the browser says that the page of this node has sent the request."""
    origin = request.headers.get("Origin")
    if origin is None:
        return request.headers.get("Sec-Fetch-Site") == "same-origin"
    return origin.partition("://")[2] == request.host


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def shown(request: web.Request) -> str | None:
    """The token of a request."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer" and token:
        return token.strip()
    for name in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
        if name.strip().startswith(SUBPROTOCOL):
            return name.strip().removeprefix(SUBPROTOCOL)
    return None
