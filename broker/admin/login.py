"""Login of operators, for the page: a name and a password for a cookie, and its end.

The cookie is a random secret. Scripts can't read it (HttpOnly), and requests that pages of other sites send don't have
it (SameSite=Strict). A request with it that changes something must also say that it is from the page's own origin.
"""

import time
from http import HTTPStatus

from aiohttp import web

from .. import logs
from ..core.audit_record import DONE
from ..rpc.node_view import NodeView
from .api.api import read_body
from .api.audited import Refusals, author
from .api.operation import ROOT
from .api.operations.sign_in import NAME_AND_PASSWORD
from .http.authorization import LOGIN_COOKIE, AdminAuthorization, judge_origin
from .http.operators import PASSWORD, Login, OperatorStore, credential_of
from .http.problems import Problem
from .http.serving import judge_serving
from .http.tokens import LOGIN, NAME, Holder

WRONG = "wrong name or password"

log = logs.get("flockmq.http")


class LoginPage:
    """Handles logins and logouts.

    Args:
        node: of the operators.
        authorization: counts failures.
        store: of the operators.
    """

    def __init__(self, node: NodeView, authorization: AdminAuthorization, store: OperatorStore) -> None:
        self._node = node
        self._authorization = authorization
        self._store = store
        self._refusals = Refusals()

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [
            web.get(f"{ROOT}/login", self.ways, allow_head=False),
            web.post(f"{ROOT}/login", self.login),
            web.post(f"{ROOT}/logout", self.logout),
        ]

    async def ways(self, request: web.Request) -> web.Response:
        """The ways to sign in, for the page."""
        self._judge(request)
        found = {"password": self._store.is_used, "oidc": bool(self._node.config.oidc.issuer)}
        return web.json_response(found, headers={"Cache-Control": "no-store"})

    async def login(self, request: web.Request) -> web.Response:
        """Verify name and password, and set the cookie."""
        self._judge(request)
        body = await read_body(NAME_AND_PASSWORD, request)
        name, address = body["name"], request.remote or ""
        self._authorization.failures.judge_password(address)
        operator = self._store.operator(name)
        is_right = await self._store.matches(None if operator is None else operator.stored, body["password"])
        if operator is None:
            operator = await self._store.first(name, body["password"])
            is_right = operator is not None
        if operator is None or not is_right or operator.disabled:
            self._authorization.failures.add(address)
            self.refuse(name if NAME.fullmatch(name) else "", request, WRONG)
            raise Problem(HTTPStatus.FORBIDDEN, WRONG)
        now = round(time.time(), 3)
        until = now + self._node.config.http.login_seconds
        login = Login(name, PASSWORD, operator.role, operator.tenant, credential_of(operator), now, until)
        holder = Holder(operator.name, operator.role, LOGIN, operator.tenant)
        self._node.audit_log.add("login", result=DONE, minor=True, **author(holder, request))
        log.info("an operator has logged in", name=name, address=address)
        return await self.logged_in(request, login)

    def refuse(self, name: str, request: web.Request, reason: str) -> None:
        """Record that an operator may not log in."""
        log.warning("an operator was refused", name=name, address=request.remote, reason=reason)
        self._refusals.record(self._node, "login", Holder(name, "", LOGIN), request, reason)

    async def logged_in(self, request: web.Request, login: Login, response: web.Response | None = None) -> web.Response:
        """The response that sets the cookie of a login."""
        secret = await self._store.add_login(login)
        found = response or web.Response(status=HTTPStatus.NO_CONTENT)
        found.headers["Cache-Control"] = "no-store"
        LOGIN_COOKIE.put(found, request, self._node.config.http.public_url, secret, int(login.until - login.since))
        return found

    async def logout(self, request: web.Request) -> web.Response:
        """End the login of the request's cookie."""
        self._judge(request)
        secret = LOGIN_COOKIE.of(request)
        if secret:
            holder = self._store.login(secret)
            await self._store.remove_login(secret)
            if holder is not None:
                self._node.audit_log.add("logout", result=DONE, minor=True, **author(holder, request))
        response = web.Response(status=HTTPStatus.NO_CONTENT, headers={"Cache-Control": "no-store"})
        LOGIN_COOKIE.put(response, request, self._node.config.http.public_url, "", 0)
        return response

    def _judge(self, request: web.Request) -> None:
        judge_origin(request)
        self._authorization.judge_reachable(request)
        judge_serving(self._node)
