"""JSON Web Tokens as passwords: the clients that they admit, until when, and every known way to forge one."""

import asyncio
import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from flockmq.broker.auth.authenticator import Credentials, ReasonCode, Step, Verdict
from flockmq.broker.auth.chain import Chain
from flockmq.broker.auth.token_keys import (
    REFRESH_SECONDS,
    FixedKeys,
    Key,
    KeysAway,
    KeysOfUrl,
    public_keys,
    secret_key,
)
from flockmq.broker.auth.tokens import MAX_TOKEN, TokenUsers
from flockmq.broker.config.auth_config import AuthConfig
from flockmq.broker.errors import ConfigError
from tests.conftest import StartBroker
from tests.harness.broker_process import environment
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE
from tests.protocol.wire import Wire
from tests.security.access_files import NOT_AUTHORIZED, UNAVAILABLE, WRONG, refused

SECRET = "a secret of more than thirty-two bytes"
SIGNERS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


@pytest.fixture
def store() -> str:
    return "memory"


def token(key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **claims: Any) -> str:
    """A token of ada's that holds for a minute, with other claims; None leaves one out."""
    claims = {"sub": "ada", "exp": time.time() + 60, **claims}
    payload = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(payload, key, algorithm, headers=None if kid is None else {"kid": kid})


def pem(algorithm: str) -> bytes:
    public: bytes = SIGNERS[algorithm].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public


def jwk(algorithm: str, **more: object) -> dict[str, Any]:
    kinds = {"RS256": jwt.algorithms.RSAAlgorithm, "ES256": jwt.algorithms.ECAlgorithm}
    kind = kinds.get(algorithm, jwt.algorithms.OKPAlgorithm)
    return {**kind.to_jwk(SIGNERS[algorithm].public_key(), as_dict=True), **more}


def let_in(broker: Broker, password: str, user: str = "jwt", client_id: str = "c") -> Wire:
    return Wire(broker.port, name=client_id).connect(f"user='{user}' pass={password}")


def start(start_broker: StartBroker, tmp_path: Path, **more: object) -> Broker:
    """A broker that takes tokens signed with SECRET."""
    (tmp_path / "secret").write_text(SECRET + "\n")
    settings = {"auth.jwt_secret_file": tmp_path / "secret", "auth.failure_delay": 0}
    return start_broker(settings | {f"auth.{name}": value for name, value in more.items()})


def test_who_has_a_token_is_let_in(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    for user in ("ada", "jwt", ""):
        let_in(broker, token(), user).close()
    let_in(broker, token(client_id="c")).close()
    now = time.time()
    for wrong in (
        token(exp=now - 40),
        token(exp=None),
        token(nbf=now + 60),
        token(sub=None),
        token(sub=""),
        token(sub=5),
        token("another secret of thirty-two bytes"),
        token(client_id="d"),
        token(aud="me"),
        token(acl=["nonsense"]),
        token()[:-3],
        token() + "x",
        "eyJ.x.y",
        "a.b.c",
        "word",
        token(iat=now + 90),
        token(exp="soon"),
    ):
        refused(broker, f"user=jwt pass={wrong}", WRONG)
    refused(broker, f"user=jwt pass={token(x='y' * MAX_TOKEN)}", WRONG)
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 40_000).decode().rstrip("=")
    refused(broker, f"user=jwt pass={deep}.x.y", WRONG)
    refused(broker, f"user=bob pass={token()}", WRONG)
    refused(broker, "", NOT_AUTHORIZED)


@pytest.mark.parametrize(
    "claims",
    [
        '"exp": 1%s' % ("0" * 400),
        '"exp": 1%s' % ("0" * 5000),
        '"exp": 1e400',
        '"exp": NaN',
        '"exp": [9]',
        '"exp": {"a": 9}',
        '"exp": 9999999999, "nbf": 1%s' % ("0" * 400),
        '"exp": 9999999999, "nbf": 1e400',
        '"exp": 9999999999, "nbf": []',
        '"exp": 9999999999, "iat": 1e400',
        '"exp": 9999999999, "iat": {}',
        '"exp": 9999999999, "sub": "\\ud800"',
        '"exp": 9999999999, "sub": "a\\udfffb"',
        '"exp": 9999999999, "sub": ["ada"]',
        '"exp": 9999999999, "client_id": "\\ud800"',
        '"exp": 9999999999, "client_id": ["c"]',
        '"exp": 9999999999, "acl": ["topic read \\ud800"]',
        '"exp": 9999999999, "acl": {"publish": ["\\udc00/#"]}',
        '"exp": 9999999999, "acl": [["topic"]]',
        '"exp": 9999999999, "jti": 5',
        '"exp": 9999999999, "aud": {"a": 1}',
        '"exp": 9999999999, "x": %s' % ("[" * 5000 + "]" * 5000),
    ],
    ids=lambda text: text[:60],
)
@pytest.mark.parametrize("method", ["password", "OAUTHBEARER"])
def test_claims_that_are_none_refuse_a_token(claims: str, method: str) -> None:
    """They ended in a traceback, or in no CONNACK at all."""
    chain = Chain([TokenUsers(AuthConfig(), [FixedKeys([KEY])], cast(Any, Now()))], cast(Any, None), anonymous=False)
    sub = "" if '"sub"' in claims else '"sub": "ada", '
    made = signed(f"{{{sub}{claims}}}")
    client = Credentials("c", None, made.encode(), "127.0.0.1", 5)

    async def ask() -> Step:
        if method == "password":
            return await cast(Any, chain.authenticate(client))
        found = chain.exchange(method, chain.find_user, lambda: b"")
        assert found is not None
        exchange, name = found
        step = await cast(Any, exchange.start(replace(client, password=None), f"n,,\1auth=Bearer {made}\1\1".encode()))
        return chain.admitted(client, step, name)

    verdict = asyncio.run(ask())
    assert isinstance(verdict, Verdict)
    assert verdict.code == ReasonCode.BAD_USERNAME_OR_PASSWORD and verdict.reason


def test_a_refused_token_is_logged(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    for claims, words in (
        ('"exp": 1%s' % ("0" * 400), "int too large"),
        ('"exp": 9999999999, "sub": "\\ud800"', "no text"),
    ):
        made = signed("{" + ("" if '"sub"' in claims else '"sub": "ada", ') + claims + "}")
        since = len(broker.log)
        refused(broker, f"user=jwt pass={made}", WRONG)
        assert words in broker.wait_for_log("connection refused", since)["reason"]


def test_audience_issuer_and_the_claim_of_the_user(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path, jwt_audience="mqtt", jwt_issuer="me", jwt_username_claim="device")
    good = {"aud": "mqtt", "iss": "me", "device": "pump", "sub": None}
    let_in(broker, token(**good), "pump").close()
    for wrong in ({"aud": None}, {"aud": "web"}, {"iss": None}, {"iss": "you"}, {"device": None}):
        refused(broker, f"user=jwt pass={token(**{**good, **wrong})}", WRONG)


def test_a_token_says_what_its_client_may_do(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    for acl in (
        ["pattern readwrite own/%c/#", "topic read news"],
        {"publish": ["own/%c/#"], "subscribe": ["own/%c/#", "news"]},
    ):
        with let_in(broker, token(acl=acl), client_id="pump") as client:
            client.send("subscribe 1 own/pump/x:0 own/other/x:0 news:0 #:0")
            client.expect("suback 1 0 0x80 0 0")
            client.send("publish news x q1 id=1", "publish own/pump/x y q1 id=2")
            client.expect("puback 1", "publish own/pump/x y", "puback 2")


def test_a_connection_ends_with_its_token(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start(start_broker, tmp_path)
    with let_in(broker, token(exp=time.time() + 1.5)) as short, let_in(broker, token(), client_id="d") as long:
        assert short.receive() is None
        long.send("pingreq")
        long.expect("pingresp")


class Now:
    """A pool that does its work at once."""

    async def run(self, work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)


KEY = Key(SECRET.encode(), ("HS256",))


def signed(claims: str) -> str:
    """A token with these claims, in JSON as it stands."""
    parts = [base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in ('{"alg":"HS256"}', claims)]
    text = b".".join(parts)
    mac = hmac.new(SECRET.encode(), text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def forged(header: dict[str, Any], key: bytes = b"", **claims: Any) -> str:
    """A token made by hand, signed with HMAC."""
    body = {"sub": "ada", "exp": time.time() + 60, **claims}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, body)]
    text = b".".join(parts)
    mac = base64.urlsafe_b64encode(hmac.new(key, text, hashlib.sha256).digest()).rstrip(b"=") if key else b""
    return (text + b"." + mac).decode()


def test_tokens_that_are_forged(start_broker: StartBroker, tmp_path: Path) -> None:
    """RFC 8725: the key decides the algorithm, not the token."""
    public = pem("RS256")
    (tmp_path / "keys").write_bytes(public)
    broker = start_broker({"auth.jwt_keys": tmp_path / "keys", "auth.failure_delay": 0})
    let_in(broker, token(SIGNERS["RS256"], "RS256")).close()
    let_in(broker, token(SIGNERS["RS256"], "PS384")).close()
    for header, key in (
        ({"alg": "none"}, b""),
        ({"alg": "None"}, b""),
        ({"alg": "HS256"}, public),
        ({"alg": "HS256"}, public.strip()),
        ({"alg": "HS256"}, b"x"),
        ({"alg": "RS256"}, b"x"),
        ({"alg": ["HS256"]}, b"x"),
        ({"alg": None}, b"x"),
        ({"alg": "HS256", "jwk": {"kty": "oct", "k": "eA"}}, b"x"),
        ({"alg": "HS256", "kid": "../../dev/null"}, b"x"),
        ({"alg": "RS256", "jku": "http://127.0.0.1:9/"}, b"x"),
        ({"alg": "RS256", "crit": ["exp"]}, b"x"),
        ({"alg": "RS256", "kid": {"a": 1}}, b"x"),
    ):
        refused(broker, f"user=jwt pass={forged(header, key)}", WRONG)
    refused(broker, f"user=jwt pass={token(SIGNERS['ES256'], 'ES256')}", WRONG)


@pytest.mark.parametrize("algorithm", SIGNERS)
def test_keys_of_a_set(algorithm: str, start_broker: StartBroker, tmp_path: Path) -> None:
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET.encode()).decode(), "kid": "secret"}
    (tmp_path / "keys").write_text(json.dumps({"keys": [secret, {"kty": "?"}, jwk(algorithm, kid="one")]}))
    broker = start_broker({"auth.jwt_keys": tmp_path / "keys", "auth.failure_delay": 0})
    let_in(broker, token(SIGNERS[algorithm], algorithm)).close()
    let_in(broker, token(SIGNERS[algorithm], algorithm, kid="one")).close()
    refused(broker, f"user=jwt pass={token(SIGNERS[algorithm], algorithm, kid='two')}", WRONG)
    refused(broker, f"user=jwt pass={token(kid='secret')}", WRONG)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("jwt_secret_file", "short\n", "has 5 bytes"),
        ("jwt_keys", "", "can't be read|Unable|load"),
        ("jwt_keys", "{}", "expected a JWKS"),
        ("jwt_keys", '{"keys": []}', "no public key"),
    ],
)
def test_keys_that_are_none(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ConfigError, match=words):
        (secret_key if name == "jwt_secret_file" else public_keys)(str(tmp_path / "file"))


def test_a_private_key_and_a_weak_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = SIGNERS["RS256"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    weak = rsa.generate_private_key(65537, 1024).public_key()
    for data, words in (
        (key, "private key"),
        (weak.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), "1024 bits"),
    ):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=words):
            public_keys(str(path))
    with pytest.raises(ConfigError, match="need https"):
        public_keys("http://example.invalid/keys")


@pytest.mark.parametrize("missing", ["jwt", "urllib3", "cryptography"])
def test_a_package_that_is_missing_is_told(missing: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    hide = f"import sys; sys.modules[{missing!r}] = None\nfrom flockmq.broker.cli import main\n"
    hide += "sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", hide, "serve", "--store", "memory", "--set", "auth.jwt_secret_file=secret"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 2
    assert done.stderr == f"flockmq: error: tokens need the package {missing}; pip install 'flockmq[auth]'\n"


class KeyServer(ThreadingHTTPServer):
    """Answers with a JWKS."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.keys: list[dict[str, Any]] = []
        self.status = 200
        self.asked = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/keys"


class _Handler(BaseHTTPRequestHandler):
    server: KeyServer

    def do_GET(self) -> None:
        self.server.asked += 1
        data = json.dumps({"keys": self.server.keys}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Location", "/keys")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def key_server() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.shutdown()
    server.server_close()


def test_keys_of_a_url(key_server: KeyServer, start_broker: StartBroker) -> None:
    key_server.keys = [jwk("ES256", kid="one")]
    broker = start_broker({"auth.jwt_keys": key_server.url, "auth.failure_delay": 0})
    assert key_server.asked == 0
    for _ in range(3):
        let_in(broker, token(SIGNERS["ES256"], "ES256", kid="one")).close()
    for number in range(10):  # a flood of unknown keys is not a flood of requests
        refused(broker, f"user=jwt pass={token(SIGNERS['EdDSA'], 'EdDSA', kid=str(number))}", WRONG)
    assert key_server.asked == 1


def test_keys_that_cannot_be_had_let_nobody_in(key_server: KeyServer, start_broker: StartBroker) -> None:
    key_server.status = 302
    broker = start_broker({"auth.jwt_keys": key_server.url, "auth.failure_delay": 0})
    refused(broker, f"user=jwt pass={token(SIGNERS['ES256'], 'ES256')}", UNAVAILABLE)
    assert key_server.asked == 1


def test_keys_change(key_server: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new key is found when a token names it, after a while; while the server is away the old keys go on."""
    now = [1000.0]
    monkeypatch.setattr("flockmq.broker.auth.token_keys.time.monotonic", lambda: now[0])
    keys = KeysOfUrl(key_server.url)
    key_server.status = 500
    with pytest.raises(KeysAway):
        keys.find("one", "ES256")
    key_server.status, key_server.keys = 200, [jwk("ES256", kid="one")]
    now[0] += REFRESH_SECONDS + 1
    assert keys.find("one", "ES256") and not keys.find("two", "RS256")
    key_server.keys = [jwk("RS256", kid="two")]
    assert not keys.find("two", "RS256")
    now[0] += REFRESH_SECONDS + 1
    assert keys.find("two", "RS256") and not keys.find("one", "ES256")
    key_server.status = 500
    now[0] += 4000
    assert keys.find("two", "RS256")
