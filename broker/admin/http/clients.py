"""Authorization of MQTT clients over HTTP: the user and password, or the token, that they would send in CONNECT.

The same parts decide as over CONNECT: bans, the authentication methods of the listener of `listen`, delays after wrong
passwords, hooks. A client has no client identifier here, so access rules with `%c` do not apply to it.
"""

import base64
import binascii
from collections.abc import Awaitable
from http import HTTPStatus

from aiohttp import web

from ...._speedups.codec.reason_codes import ReasonCode
from ...._speedups.session.counters import AUTH_FAILURES
from ... import logs
from ...auth.authenticator import Credentials, Identity, Verdict
from ...auth.listener_exposure import reachable
from ...hooks.api import Client
from ...hooks.chain import Refused
from ...rpc.node_view import NodeView
from .authorization import AdminAuthorization, judge_origin, shown
from .problems import Problem
from .serving import judge_serving
from .tokens import PASSWORD, VIEWER, Holder

LEVEL = 5  # of the protocol: a password needs no user name
CHALLENGE = 'Basic realm="FlockMQ", charset="UTF-8"'
WRONG = (ReasonCode.BAD_USERNAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED)
STATUSES = {
    ReasonCode.CONNECTION_RATE_EXCEEDED: HTTPStatus.TOO_MANY_REQUESTS,
    ReasonCode.SERVER_BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
    ReasonCode.SERVER_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}

log = logs.get("flockmq.http")


class ClientAuthorization:
    """Authorizes requests of MQTT clients, and of holders of tokens.

    Args:
        node: of the clients.
        admin: authorizes holders of tokens.
    """

    def __init__(self, node: NodeView, admin: AdminAuthorization) -> None:
        self._node = node
        self._admin = admin

    async def judge(self, request: web.Request, role: str) -> Holder:
        """The holder of the token, if it has this role, or the client.

        Raises:
            Problem: the request is refused.
        """
        judge_origin(request)
        if self._admin.knows(request):
            return self._admin.judge(request, role)
        kind, _, rest = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            return await self._client(request, *_read(rest))
        token = shown(request)
        if token is not None:
            return await self._client(request, None, token.encode())
        return self._admin.judge_local(request) or await self._anonymous(request)

    async def _anonymous(self, request: web.Request) -> Holder:
        """A client without credentials. An address that is open to this machine only must not open here to others."""
        if self._admin.is_local(request) or self._listener in {each.name for each, _ in reachable(self._node.config)}:
            return await self._client(request, None, None)
        raise _unauthorized("this needs a user name and a password, or a token")

    @property
    def _listener(self) -> str:
        """The listener whose clients are accepted."""
        names = [listener.name for listener in self._node.config.listeners]
        return "default" if "default" in names else names[0]

    async def _client(self, request: web.Request, username: str | None, password: bytes | None) -> Holder:
        judge_serving(self._node)
        credentials = Credentials("", username, password, address_of(request.remote or ""), LEVEL, self._listener)
        self._judge_bans(credentials, username)
        verdict = await self._authenticate(credentials)
        turn = self._node.broker.data_plane.turn
        turn.count(AUTH_FAILURES, verdict.code in WRONG)
        if verdict.code != ReasonCode.ACCEPTED:
            limiter = self._node.broker.data_plane.log_limiter
            limiter.write(log.warning, "client refused over HTTP", address=credentials.address, reason=verdict.reason)
            if verdict.code in STATUSES:
                raise Problem(STATUSES[verdict.code], "this client can't be authenticated now", Retry_After="1")
            raise _unauthorized("wrong user name, password or token, or none")
        identity = verdict.identity
        self._judge_bans(credentials, identity.username, identity.tenant)
        await self._ask_hooks(client_of(credentials.address, identity))
        name = identity.username or "an anonymous client"
        return Holder(name, VIEWER, PASSWORD, identity.tenant, identity=identity)

    def _judge_bans(self, credentials: Credentials, username: str | None, tenant: str = "") -> None:
        if self._node.broker.bans.covering(None, username, credentials.address, tenant) is not None:
            raise Problem(HTTPStatus.FORBIDDEN, "this client is banned")

    async def _authenticate(self, credentials: Credentials) -> Verdict:
        try:
            answer = self._node.broker.authenticator.authenticate(credentials)
            return await answer if isinstance(answer, Awaitable) else answer
        except Exception:
            log.exception("the authenticator failed", address=credentials.address)
            return Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="the authenticator failed")

    async def _ask_hooks(self, client: Client) -> None:
        found = self._node.broker.hooks.filter(client, ("connect", lambda given: (given,)))
        if isinstance(await found if isinstance(found, Awaitable) else found, Refused):
            raise Problem(HTTPStatus.FORBIDDEN, "a hook refuses this client")


def client_of(address: str, identity: Identity) -> Client:
    """A client, as hooks get it."""
    return Client("", identity.username, address, identity.listener, LEVEL)


def address_of(host: str) -> str:
    """The address of a client that no listener has accepted."""
    return f"[{host}]:0" if ":" in host else f"{host}:0"


def _read(text: str) -> tuple[str, bytes]:
    """User name and password [RFC 7617]."""
    try:
        username, _, password = base64.b64decode(text.strip(), validate=True).partition(b":")
        return username.decode(), password
    except (binascii.Error, UnicodeDecodeError):
        raise _unauthorized("the header Authorization has no user name and password in base64") from None


def _unauthorized(detail: str) -> Problem:
    return Problem(HTTPStatus.UNAUTHORIZED, detail, WWW_Authenticate=CHALLENGE)
