"""An identity provider, written to OpenID Connect Core 1.0 and RFC 7636: it signs everybody in at once."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "flockmq", "client secret"
Change = Callable[[dict[str, Any]], object]


class Provider:
    """The provider; a context manager.

    Attributes:
        user: claims of the user that signs in.
        change: changes the claims of the next ID tokens.
        encode: makes the ID token of claims.
        answer: a status of the token endpoint instead of its reply; 0: none.
    """

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.user: dict[str, Any] = {"sub": "1", "preferred_username": "ann", "groups": ["staff", "iot-admins"]}
        self.change: Change = lambda claims: None
        self.encode: Callable[[dict[str, Any]], str] = self.sign
        self.answer = 0
        self.requests: list[dict[str, str]] = []  # to the authorization endpoint
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._get(self)

            def do_POST(self) -> None:
                provider._token(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}/realms/iot"

    def __enter__(self) -> "Provider":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def sign(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key, "RS256", {"kid": "k1"})

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        place = urlsplit(request.path)
        if place.path.endswith("/.well-known/openid-configuration"):
            names = {"authorization_endpoint": "auth", "token_endpoint": "token", "jwks_uri": "keys"}
            _reply(request, {"issuer": self.issuer} | {name: f"{self.issuer}/{end}" for name, end in names.items()})
        elif place.path.endswith("/keys"):
            key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
            _reply(request, {"keys": [{**key, "kid": "k1", "use": "sig", "alg": "RS256"}]})
        else:
            given = {name: values[0] for name, values in parse_qs(place.query, strict_parsing=True).items()}
            assert given["response_type"] == "code" and given["code_challenge_method"] == "S256"
            assert given["client_id"] == CLIENT and "openid" in given["scope"].split()
            self.requests.append(given)
            code = secrets.token_urlsafe(16)
            self._codes[code] = given
            request.send_response(302)
            request.send_header(
                "Location", f"{given['redirect_uri']}?{urlencode({'code': code, 'state': given['state']})}"
            )
            request.end_headers()

    def _token(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"])).decode()
        given = {name: values[0] for name, values in parse_qs(body, strict_parsing=True).items()}
        begun = self._codes.pop(given.get("code", ""), None)  # once
        basic = base64.b64decode(request.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if self.answer:
            _reply(request, {"error": "server_error"}, self.answer)
        elif (
            begun is None
            or basic != f"{CLIENT}:{SECRET}"
            or challenge != begun["code_challenge"]
            or given["redirect_uri"] != begun["redirect_uri"]
            or given["grant_type"] != "authorization_code"
        ):
            _reply(request, {"error": "invalid_grant"}, 400)
        else:
            now = int(time.time())
            claims = {
                "iss": self.issuer,
                "aud": CLIENT,
                "exp": now + 60,
                "iat": now,
                "nonce": begun["nonce"],
                **self.user,
            }
            self.change(claims)
            _reply(request, {"access_token": "x", "token_type": "Bearer", "id_token": self.encode(claims)})


def _reply(request: BaseHTTPRequestHandler, document: object, status: int = 200) -> None:
    data = json.dumps(document).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
