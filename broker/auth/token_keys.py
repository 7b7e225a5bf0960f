"""Keys that verify tokens: a secret file, or public keys from a PEM file, a JWKS file, or a JWKS URL.

The key decides over the algorithms, never the token: a public key is never used as a secret, and `none` fits no key
(RFC 8725). A URL is fetched off the loop, again after an hour, and when a token names an unknown key, but not more
often than every `REFRESH_SECONDS`. While the URL can't be reached, the previous keys stay in use.
"""

import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt
import urllib3
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from .. import logs
from ..errors import ConfigError
from .acl_file import read_text
from .listener_exposure import is_local
from .rules import read_json

MIN_SECRET = 32  # bytes, as RFC 7518 requires of HS256
MIN_RSA = 2048  # bits
REFRESH_SECONDS = 30.0
TRUSTED_SECONDS = 3600.0
TIMEOUT = 5.0
MAX_ANSWER = 1 << 20  # bytes
CURVES = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")

log = logs.get("flockmq.auth")


class Key(NamedTuple):
    """A key and its algorithms."""

    key: Any
    algorithms: tuple[str, ...]
    name: str | None = None  # "kid"


class KeysAway(Exception):
    """The keys can't be fetched for now."""


class FixedKeys:
    """Keys of files."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def find(self, name: str | None, algorithm: str) -> list[Key]:
        """The keys that may have signed a token: of this name, if it has one, and this algorithm. May take time."""
        return matching(self._keys, name, algorithm)


class KeysOfUrl:
    """Keys of a URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = urllib3.PoolManager(
            timeout=urllib3.Timeout(TIMEOUT), retries=urllib3.Retry(0, redirect=False), maxsize=1
        )
        self._keys: tuple[Key, ...] = ()
        self._fetched = self._tried = -TRUSTED_SECONDS
        self._lock = threading.Lock()  # threads verify tokens at the same time

    def find(self, name: str | None, algorithm: str) -> list[Key]:
        """As of files; fetches them if need be.

        Raises:
            KeysAway: they were never fetched.
        """
        with self._lock:
            found = matching(self._keys, name, algorithm)
            age, since = time.monotonic() - self._fetched, time.monotonic() - self._tried
            if (not found or age > TRUSTED_SECONDS) and since > REFRESH_SECONDS:
                self._fetch()
                found = matching(self._keys, name, algorithm)
            if not self._keys:
                raise KeysAway
            return found

    def _fetch(self) -> None:
        self._tried = time.monotonic()
        try:
            answer = self._http.request("GET", self._url, preload_content=False)
            data = answer.read(MAX_ANSWER)
            answer.release_conn()
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            keys = tuple(keys_of_set(read_json(data)))
            if not keys:
                raise ValueError("it has no usable key")
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
            log.error("fetching the keys of tokens failed", url=self._url, error=error)
        else:
            self._keys, self._fetched = keys, self._tried


def matching(keys: Iterable[Key], name: str | None, algorithm: str) -> list[Key]:
    """Keys for a token, which may name its key."""
    return [
        key for key in keys if algorithm in key.algorithms and (name is None or key.name is None or key.name == name)
    ]


def secret_key(path: str) -> Key:
    """The key of HS256 in a file; white space at its end is not part of it.

    Raises:
        ConfigError: there is none, or it could be guessed.
    """
    secret = read_text(path, "auth.jwt_secret_file").rstrip().encode()
    if len(secret) < MIN_SECRET:
        raise ConfigError(
            f"auth.jwt_secret_file = {path!r} has {len(secret)} bytes; a secret has {MIN_SECRET} or more",
            f"openssl rand -base64 48 > {path}",
        )
    return Key(secret, ("HS256",))


def public_keys(place: str) -> FixedKeys | KeysOfUrl:
    """The keys of `auth.jwt_keys`.

    Raises:
        ConfigError: it names none.
    """
    url = urlsplit(place)
    if url.scheme in ("http", "https"):
        if url.scheme == "http" and not is_local(f"{url.hostname}:80"):
            raise ConfigError(f"auth.jwt_keys = {place!r}: keys from the network need https")
        return KeysOfUrl(place)
    text = read_text(place, "auth.jwt_keys")
    try:
        keys = keys_of_set(read_json(text.encode())) if text.lstrip().startswith("{") else [pem_key(text.encode())]
    except ValueError as error:
        raise ConfigError(f"auth.jwt_keys = {place!r}: {error}") from error
    if not keys:
        raise ConfigError(f"auth.jwt_keys = {place!r} has no public key that FlockMQ can use")
    return FixedKeys(keys)


def pem_key(data: bytes) -> Key:
    """A public key, also out of a certificate.

    Raises:
        ValueError: it is none.
    """
    if b"PRIVATE KEY" in data:
        raise ValueError("this is a private key, which only the issuer of tokens may have: use the public key")
    is_certificate = b"BEGIN CERTIFICATE" in data
    key = load_pem_x509_certificate(data).public_key() if is_certificate else load_pem_public_key(data)
    return Key(key, algorithms_of(key))


def keys_of_set(document: Any) -> list[Key]:
    """The usable keys of a JWKS; secrets in it are none.

    Raises:
        ValueError: it is no JWKS.
    """
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError('expected a JWKS, {"keys": [...]}')
    found = []
    for entry in document["keys"]:
        try:
            if entry["kty"] == "oct" or entry.get("use", "sig") != "sig" or "d" in entry:
                continue
            key = jwt.PyJWK(entry, algorithm=entry.get("alg")).key
            algorithms = algorithms_of(key)
        except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("a key of a JWKS can't be used", error=error)
            continue
        wanted = entry.get("alg")
        found.append(Key(key, tuple(a for a in algorithms if wanted in (None, a)), entry.get("kid")))
    return found


def algorithms_of(key: Any) -> tuple[str, ...]:
    """The algorithms of a public key.

    Raises:
        ValueError: it has none.
    """
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA:
            raise ValueError(f"an RSA key of {key.key_size} bits; at least {MIN_RSA} are required")
        return RSA
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES:
        return CURVES[key.curve.name]
    if isinstance(key, (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey)):
        return ("EdDSA",)
    raise ValueError("a kind of key that signs no tokens")
