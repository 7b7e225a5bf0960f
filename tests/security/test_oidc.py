"""Operators sign in at an identity provider; whoever forges a part of that stays outside."""

import http.client
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.conftest import StartBroker, StartCluster
from tests.harness.command import flockmq
from tests.security.oidc_provider import SECRET, Provider
from tests.web.http_client import HttpClient

Reply = tuple[int, dict[str, str], str]  # status, headers, body


@pytest.fixture
def store() -> str:
    return "memory"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


def settings(provider: Provider, tmp_path: Path) -> dict[str, object]:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    return {
        "http.listen": "127.0.0.1:0",
        "oidc.issuer": provider.issuer,
        "oidc.secret_file": str(tmp_path / "secret"),
        "oidc.roles": "iot-admins=admin,acme=operator:acme,staff=viewer",
    }


@pytest.fixture
def api(provider: Provider, start_broker: StartBroker, tmp_path: Path) -> HttpClient:
    return HttpClient(start_broker(settings(provider, tmp_path)))


class Visitor:
    """A browser: it follows no redirect by itself, and keeps cookies."""

    def __init__(self) -> None:
        self.cookies: dict[str, str] = {}
        self.set: list[str] = []  # as they came

    def get(self, url: str, **headers: str) -> Reply:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(str(place.netloc))
        own = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())} if self.cookies else {}
        connection.request("GET", f"{place.path}?{place.query}", headers={**own, **headers})
        reply = connection.getresponse()
        for value in reply.headers.get_all("Set-Cookie", []):
            self.set.append(value)
            for name, morsel in SimpleCookie(value).items():
                self.cookies[name] = morsel.value
        found = reply.status, {name.lower(): text for name, text in reply.getheaders()}, reply.read().decode()
        connection.close()
        return found

    def begin(self, api: HttpClient) -> str:
        """The address to which the provider sends the browser back."""
        status, headers, _ = self.get(f"{api.url}/api/v1/login/oidc", **{"Sec-Fetch-Site": "same-origin"})
        assert status == 303
        status, headers, _ = self.get(headers["location"])
        assert status == 302
        return headers["location"]

    def sign_in(self, api: HttpClient) -> Reply:
        return self.get(self.begin(api), **{"Sec-Fetch-Site": "cross-site"})

    def me(self, api: HttpClient) -> Reply:
        return self.get(f"{api.url}/api/v1/me")


def test_an_operator_signs_in(api: HttpClient, provider: Provider) -> None:
    assert api.ask("GET", "/nodes").status == 401
    assert api.get("/login") == {"password": False, "oidc": True}
    visitor = Visitor()
    status, _, body = visitor.sign_in(api)
    assert status == 200 and 'url=/"' in body
    assert all("HttpOnly" in cookie for cookie in visitor.set if "Max-Age=0" not in cookie)
    assert visitor.me(api)[2] == '{"name": "oidc:ann", "role": "admin", "tenant": ""}'
    provider.user["groups"] = "acme"
    visitor.sign_in(api)
    assert visitor.me(api)[2] == '{"name": "oidc:ann", "role": "operator", "tenant": "acme"}'


def test_somebody_without_a_group_is_refused_and_on_record(api: HttpClient, provider: Provider) -> None:
    admin, visitor = Visitor(), Visitor()
    admin.sign_in(api)
    for groups in ([], ["guests"], None, {"iot-admins": 1}, "iot-admins,staff"):
        provider.user["groups"] = groups
        status, _, body = visitor.sign_in(api)
        assert status == 403 and "none of your groups" in body, groups
        assert visitor.me(api)[0] == 401
    records = admin.get(f"{api.url}/api/v1/audit-log?result=refused")[2]
    assert records.count('"oidc:ann"') == 5


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": "another"},
        {"aud": "another"},
        {"aud": ["another"]},
        {"iss": "https://evil.example"},
        {"exp": 1_000_000_000},
        {"exp": None},
        {"nonce": None},
        {"azp": "another"},
    ],
    ids=str,
)
def test_a_token_with_wrong_claims_is_refused(api: HttpClient, provider: Provider, change: dict[str, Any]) -> None:
    def spoil(claims: dict[str, Any]) -> None:
        claims.update(change)
        for name in [name for name, value in claims.items() if value is None]:
            del claims[name]

    provider.change = spoil
    visitor = Visitor()
    assert visitor.sign_in(api)[0] == 502
    assert visitor.me(api)[0] == 401


def test_a_token_with_a_wrong_signature_is_refused(api: HttpClient, provider: Provider) -> None:
    other = rsa.generate_private_key(65537, 2048)
    public = provider.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    forgeries = (
        lambda claims: jwt.encode(claims, "", "none"),
        lambda claims: jwt.encode(claims, other, "RS256", {"kid": "k1"}),
        lambda claims: jwt.encode(claims, other, "RS256", {"kid": "unknown"}),
        lambda claims: "x.y.z",
        lambda claims: "",
        lambda claims: hmac_token(claims, public),
    )
    for encode in forgeries:
        provider.encode = encode
        assert Visitor().sign_in(api)[0] == 502


def hmac_token(claims: dict[str, Any], key: bytes) -> str:
    """A token signed with the public key as a secret, which PyJWT refuses to make."""
    import base64
    import hashlib
    import hmac
    import json

    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in ({"alg": "HS256"}, claims)]
    signature = base64.urlsafe_b64encode(hmac.digest(key, b".".join(parts), hashlib.sha256)).rstrip(b"=")
    return b".".join([*parts, signature]).decode()


def test_a_login_belongs_to_the_browser_that_began_it(api: HttpClient, provider: Provider) -> None:
    victim, attacker = Visitor(), Visitor()
    back = attacker.begin(api)
    status, _, body = victim.get(back, **{"Sec-Fetch-Site": "cross-site"})  # login CSRF
    assert status == 403 and "another browser" in body and victim.me(api)[0] == 401
    victim.begin(api)
    assert victim.get(back)[0] == 403  # its own cookie, another's state
    place = urlsplit(back)
    query = dict(parse_qsl(place.query))
    assert attacker.get(place._replace(query=urlencode({**query, "code": "guess"})).geturl())[0] == 502
    assert (
        attacker.get(place._replace(query=urlencode({"state": query["state"], "error": "<img src=x>"})).geturl())[0]
        == 403
    )
    forged = Visitor()
    forged.cookies = {
        name: f"{value[:-1]}{'0' if value[-1] != '0' else '1'}" for name, value in attacker.cookies.items()
    }
    assert forged.get(back)[0] == 403
    assert attacker.get(back)[0] == 200
    assert attacker.get(back)[0] == 403  # a code counts once, and so does the cookie


def test_pkce_and_no_secret_in_any_address(api: HttpClient, provider: Provider) -> None:
    visitor = Visitor()
    back = visitor.begin(api)
    (request,) = provider.requests
    assert len(request["code_challenge"]) == 43
    for text in (back, str(request)):
        assert SECRET not in text and "code_verifier" not in text
    assert request["redirect_uri"] == f"{api.url}/api/v1/login/oidc/callback"


def test_the_provider_is_away(provider: Provider, start_broker: StartBroker, tmp_path: Path) -> None:
    given = settings(provider, tmp_path)
    broker = start_broker({**given, "oidc.issuer": "http://127.0.0.1:1/x"})
    status, _, body = Visitor().get(f"{HttpClient(broker).url}/api/v1/login/oidc")
    assert status == 502 and "the log of the node" in body
    provider.answer = 500
    broker = start_broker(given)
    assert Visitor().sign_in(HttpClient(broker))[0] == 502
    broker.wait_for_log("the identity provider failed")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"oidc.issuer": "http://login.example.com"}, "needs https"),
        ({"oidc.roles": ""}, "no operator could sign in"),
        ({"oidc.roles": "x=boss"}, "GROUP=ROLE"),
        ({"oidc.secret_file": "/nothing"}, "can't be read"),
    ],
)
def test_a_wrong_configuration(provider: Provider, tmp_path: Path, change: dict[str, object], error: str) -> None:
    given = {**settings(provider, tmp_path), **change}
    options = [text for name, value in given.items() for text in ("--set", f"{name}={value}")]
    assert error in flockmq("serve", "--listen", "127.0.0.1:0", *options, status=2)


def test_any_node_gets_the_callback(provider: Provider, start_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = start_cluster(settings(provider, tmp_path), nodes="ab")
    a, b = (HttpClient(cluster[name]) for name in "ab")
    visitor = Visitor()
    back = visitor.begin(a)
    assert visitor.get(urlsplit(back)._replace(netloc=f"{b.host}:{b.port}").geturl())[0] == 200
    assert visitor.me(a)[0] == visitor.me(b)[0] == 200
