"""OpenID Connect: operators sign in at an identity provider [OpenID Connect Core 1.0], by the code flow with PKCE.

The state of a login that is under way is in a cookie of the browser, signed by the broker: any node may get the
callback. A callback needs the cookie, so an attacker can't log another person in (RFC 9700, 4.7). The names of these
operators begin with `oidc:`, which no operator with a password may have.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3
from aiohttp import web

from .. import logs
from ..auth.acl_file import read_text
from ..auth.listener_exposure import is_local
from ..auth.token_keys import KeysAway, KeysOfUrl
from ..auth.tokens import FAULTS, MAX_TOKEN, header_of, verified_claims
from ..auth.work_pool import Busy, WorkPool
from ..config.admin_config import OidcConfig
from ..errors import ConfigError
from ..rpc.node_view import NodeView
from .api.audited import author
from .api.operation import ROOT
from .http.cookies import Cookie
from .http.operators import OIDC, Login
from .http.problems import Problem
from .http.serving import judge_serving
from .http.tokens import LOGIN, Holder
from .login import LoginPage

PATH = f"{ROOT}/login/oidc"
COOKIE = Cookie("flockmq_oidc", PATH, "Lax")  # the provider sends the browser back
LIFE = 600.0  # seconds that a login at the provider may take
DISCOVERED_SECONDS = 3600.0
TIMEOUT = 5.0
MAX_REPLY = 1 << 20  # bytes
MAX_NAME = 100  # characters
THREADS, MAX_WAITING = 2, 20
DISCOVERY = "/.well-known/openid-configuration"
PREFIX = "oidc:"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
# A redirect is of the other site still, and would not have the cookie; a page of this site has.
PAGE = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>FlockMQ</title><a href="/">FlockMQ</a>'

log = logs.get("flockmq.http")


class ProviderFault(Exception):
    """The provider can't be reached, or its reply is wrong."""


class Endpoints(NamedTuple):
    """Of a provider."""

    authorization: str
    token: str
    keys: KeysOfUrl


class Provider:
    """The identity provider. Its methods block.

    Args:
        config: of the provider.

    Raises:
        ConfigError: the issuer is not safe, or the file of the secret can't be read.
    """

    def __init__(self, config: OidcConfig) -> None:
        host = config.issuer.partition("://")[2].partition("/")[0]
        if config.issuer.startswith("http://") and not is_local(host if ":" in host else f"{host}:80"):
            raise ConfigError(f"oidc.issuer = {config.issuer!r}: an issuer in the network needs https")
        if not config.roles:
            raise ConfigError(
                "oidc.roles is empty: no operator could sign in", 'such as oidc.roles = ["iot-admins=admin"]'
            )
        self.config = config
        self._secret = read_text(config.secret_file, "oidc.secret_file").strip() if config.secret_file else ""
        self._http = urllib3.PoolManager(
            timeout=urllib3.Timeout(TIMEOUT), retries=urllib3.Retry(0, redirect=False), maxsize=THREADS
        )
        self._endpoints: Endpoints | None = None
        self._discovered = 0.0

    def endpoints(self) -> Endpoints:
        """The addresses of the provider, from its description. Raises ProviderFault."""
        if self._endpoints is None or time.monotonic() > self._discovered + DISCOVERED_SECONDS:
            found = self._json("GET", f"{self.config.issuer.rstrip('/')}{DISCOVERY}")
            if str(found.get("issuer", "")).rstrip("/") != self.config.issuer.rstrip("/"):
                raise ProviderFault("the description of the provider names another issuer")
            try:
                urls = [str(found[name]) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
            except KeyError as error:
                raise ProviderFault(f"the description of the provider lacks {error}") from None
            self._issuer = str(found["issuer"])
            self._endpoints = Endpoints(urls[0], urls[1], KeysOfUrl(urls[2]))
            self._discovered = time.monotonic()
        return self._endpoints

    def claims(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> dict[str, Any]:
        """The claims of the ID token that a code stands for. Raises ProviderFault."""
        endpoints, config = self.endpoints(), self.config
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
            "client_id": config.client_id,
        }
        headers: Mapping[str, str] = NO_HEADERS
        if self._secret:
            headers = urllib3.make_headers(basic_auth=f"{config.client_id}:{self._secret}")
        reply = self._json("POST", endpoints.token, fields, headers)
        token = str(reply.get("id_token", "")).encode()
        header = header_of(token) if len(token) <= MAX_TOKEN else None
        if header is None:
            raise ProviderFault("its reply has no ID token")
        try:
            claims = verified_claims(token, header, (endpoints.keys,), config.client_id, self._issuer)
        except KeysAway:
            raise ProviderFault("its keys can't be fetched") from None
        except FAULTS as error:
            raise ProviderFault(f"its ID token: {error}") from None
        if not hmac.compare_digest(str(claims.get("nonce", "")), nonce):
            raise ProviderFault("its ID token is of another login")
        if claims.get("azp", config.client_id) != config.client_id:
            raise ProviderFault("its ID token is for another party")
        return claims

    def role_of(self, claims: dict[str, Any]) -> tuple[str, str] | None:
        """Role and tenant of an operator; None: it has none."""
        value = claims.get(self.config.claim, [])
        groups = {str(each) for each in (value if isinstance(value, list) else [value])}
        for rule in self.config.roles:
            group, _, given = rule.partition("=")
            if group in groups:
                role, _, tenant = given.partition(":")
                return role, tenant
        return None

    def _json(
        self, method: str, url: str, fields: dict[str, str] | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> dict[str, Any]:
        try:
            body = None if fields is None else urlencode(fields)
            kind = {} if body is None else {"Content-Type": "application/x-www-form-urlencoded"}
            reply = self._http.request(method, url, body=body, headers={**kind, **headers}, preload_content=False)
            data = reply.read(MAX_REPLY)
            reply.release_conn()
            found = json.loads(data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError) as error:
            raise ProviderFault(f"{url}: {error}") from None
        if reply.status != HTTPStatus.OK or not isinstance(found, dict):
            detail = found.get("error", "") if isinstance(found, dict) else ""
            raise ProviderFault(f"{url}: status {reply.status} {detail}".rstrip())
        return found


class OidcLogin:
    """Handles logins at the provider.

    Args:
        node: of the operators.
        page: makes logins.

    Raises:
        ConfigError: as for Provider.
    """

    def __init__(self, node: NodeView, page: LoginPage) -> None:
        self._node = node
        self._page = page
        self._provider = Provider(node.config.oidc)
        self._pool = WorkPool("oidc", THREADS, MAX_WAITING)

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [
            web.get(PATH, self.begin, allow_head=False),
            web.get(f"{PATH}/callback", self.finish, allow_head=False),
        ]

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Send the browser to the provider."""
        judge_serving(self._node)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        endpoints = await self._ask(self._provider.endpoints)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        redirect_uri, config = self._redirect_uri(request), self._node.config.oidc
        query = {
            "response_type": "code",
            "client_id": config.client_id,
            "redirect_uri": redirect_uri,
            "scope": config.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        mark = "&" if "?" in endpoints.authorization else "?"
        response = web.Response(
            status=HTTPStatus.SEE_OTHER,
            headers={"Location": f"{endpoints.authorization}{mark}{urlencode(query)}", "Cache-Control": "no-store"},
        )
        kept = json.dumps([state, nonce, verifier, redirect_uri, int(time.time() + LIFE)]).encode()
        value = base64.urlsafe_b64encode(kept).decode()
        url = self._node.config.http.public_url
        COOKIE.put(response, request, url, f"{value}.{self._signature(value)}", int(LIFE))
        return response

    async def finish(self, request: web.Request) -> web.StreamResponse:
        """The provider sends the browser back."""
        judge_serving(self._node)
        state, nonce, verifier, redirect_uri = self._kept(request)
        if not hmac.compare_digest(request.query.get("state", ""), state):
            raise Problem(HTTPStatus.FORBIDDEN, "this login was not begun in this browser: sign in again")
        if "code" not in request.query:
            fault = request.query.get("error", "no code")[:100]
            raise Problem(HTTPStatus.FORBIDDEN, f"the identity provider refuses: {fault}")
        claims = await self._ask(self._provider.claims, request.query["code"], verifier, redirect_uri, nonce)
        name = f"{PREFIX}{claims.get('preferred_username') or claims.get('email') or claims.get('sub', '')}"[:MAX_NAME]
        found = self._provider.role_of(claims)
        if found is None:
            self._page.refuse(name, request, "none of the operator's groups has a role")
            raise Problem(HTTPStatus.FORBIDDEN, f"none of your groups has a role here ({self._node.config.oidc.claim})")
        role, tenant = found
        now = round(time.time(), 3)
        login = Login(name, OIDC, role, tenant, "", now, now + self._node.config.http.login_seconds)
        self._node.audit_log.add("login", minor=True, **author(Holder(name, role, LOGIN, tenant), request))
        log.info("an operator has logged in", name=name, address=request.remote)
        response = await self._page.logged_in(request, login, web.Response(text=PAGE, content_type="text/html"))
        COOKIE.put(response, request, self._node.config.http.public_url, "", 0)
        return response

    async def _ask(self, work: Any, *arguments: str) -> Any:
        try:
            return await self._pool.run(work, *arguments)
        except Busy:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many logins wait", Retry_After="1") from None
        except ProviderFault as fault:
            log.error("the identity provider failed", issuer=self._node.config.oidc.issuer, reason=fault)
            detail = "the identity provider can't be asked, or its reply is wrong; the log of the node has the reason"
            raise Problem(HTTPStatus.BAD_GATEWAY, detail) from None

    def _redirect_uri(self, request: web.Request) -> str:
        own = self._node.config.http.public_url or f"{'https' if request.secure else 'http'}://{request.host}"
        return f"{own}{PATH}/callback"

    def _kept(self, request: web.Request) -> tuple[str, str, str, str]:
        """State, nonce, verifier and redirect URI of the login that the browser has begun."""
        value, _, signature = COOKIE.of(request).partition(".")
        if value and hmac.compare_digest(signature, self._signature(value)):
            state, nonce, verifier, redirect_uri, until = json.loads(base64.urlsafe_b64decode(value))
            if time.time() < until:
                return state, nonce, verifier, redirect_uri
        raise Problem(HTTPStatus.FORBIDDEN, "the login took too long, or was begun in another browser: sign in again")

    def _signature(self, value: str) -> str:
        return hmac.new(self._node.broker.secret(), f"oidc {value}".encode(), hashlib.sha256).hexdigest()

    async def close(self, _: web.Application) -> None:
        """End the threads."""
        self._pool.close()
