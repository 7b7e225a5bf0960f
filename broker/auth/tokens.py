"""JSON Web Tokens as passwords: their issuer sets the user of a client, its rules, and the end of its connection.

A password of three parts whose first is a JSON header is a token, and the verdict over it is final. It must have `exp`,
at which the connection ends, and the configured `aud` and `iss`. The user is `sub`, or the configured claim. The user
name in CONNECT must be the same, "jwt" or empty; a claim `client_id` must be the client's. A claim `acl` has rules.
"""

import base64
from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import Any, Protocol

import jwt

from ..config.auth_config import AuthConfig
from .authenticator import Credentials, Identity, ReasonCode, Verdict
from .oauth_bearer import ANONYMOUS_NAMES, OAuthBearer
from .oauth_bearer import NAME as OAUTHBEARER
from .rules import parse_rules, read_json
from .token_keys import Key, KeysAway
from .work_pool import WorkPool

LEEWAY = 30.0  # seconds by which clocks may differ
MAX_USERNAME = 1000
MAX_TOKEN = 16 << 10  # bytes; its header is read on the loop, before the client is known
AWAY = Verdict(ReasonCode.SERVER_UNAVAILABLE, reason="the keys of tokens can't be fetched for now")
TOO_LONG = Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason=f"its token: it has more than {MAX_TOKEN} bytes")
# Of PyJWT, which lets faults of numbers, lists and depths in claims pass.
FAULTS = (jwt.PyJWTError, ValueError, OverflowError, TypeError, RecursionError)


class Keys(Protocol):
    """A source of keys."""

    def find(self, name: str | None, algorithm: str) -> Sequence[Key]:
        """The keys that may have signed a token."""


class TokenUsers:
    """Accepts clients with a token.

    Args:
        auth: of the listener.
        keys: sources of keys.
        pool: threads that verify signatures.
        claims: names of the claims that the identity keeps.
    """

    name = "token"
    dummy_hash = None

    def __init__(self, auth: AuthConfig, keys: Sequence[Keys], pool: WorkPool, claims: Collection[str] = ()) -> None:
        self._kept_claims = tuple(sorted(claims))
        self._claim = auth.jwt_username_claim
        self._audience, self._issuer = auth.jwt_audience or None, auth.jwt_issuer or None
        self._is_bearer_allowed = OAUTHBEARER in auth.methods
        self._keys = tuple(keys)
        self._pool = pool

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict] | None:
        """None: the password is no token."""
        password = credentials.password or b""
        if not looks_like_token(password):
            return None
        if len(password) > MAX_TOKEN:
            return TOO_LONG
        header = header_of(password)
        return None if header is None else self._pool.run(self._verify, credentials, header)

    def exchange(self, name: str) -> OAuthBearer | None:
        """An exchange of OAUTHBEARER; None for other methods."""
        return OAuthBearer(self.authenticate) if name == OAUTHBEARER and self._is_bearer_allowed else None

    def renew(self, identity: Identity) -> Identity | None:
        """A token is valid until it expires."""
        return identity

    def _verify(self, credentials: Credentials, header: dict[str, Any]) -> Verdict:
        """In a thread: it may fetch keys."""
        try:
            return self._verdict(
                credentials,
                verified_claims(credentials.password or b"", header, self._keys, self._audience, self._issuer),
            )
        except KeysAway:
            return AWAY
        except FAULTS as error:
            return Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason=f"its token: {error}")

    def _verdict(self, credentials: Credentials, claims: dict[str, Any]) -> Verdict:
        username = claims.get(self._claim)
        if not isinstance(username, str) or not 0 < len(username) <= MAX_USERNAME or "\0" in username:
            raise ValueError(f"the claim {self._claim!r} names no user")
        if credentials.username not in (None, *ANONYMOUS_NAMES, username):
            raise ValueError("it is another user's")
        if claims.get("client_id", credentials.client_id) != credentials.client_id:
            raise ValueError("it is for another client id")
        kept = tuple((name, str(claims[name])) for name in self._kept_claims if isinstance(claims.get(name), str | int))
        rules = parse_rules(claims.get("acl"))
        identity = Identity(username, expires=float(claims["exp"]), rules=rules, claims=kept)
        return Verdict(ReasonCode.ACCEPTED, identity)


def verified_claims(
    token: bytes, header: dict[str, Any], sources: Iterable[Keys], audience: str | None, issuer: str | None
) -> dict[str, Any]:
    """The claims of a token whose signature, end, audience and issuer are right. May fetch keys.

    Args:
        token: as it was sent.
        header: of the token.
        sources: of keys.
        audience, issuer: that it must have; None: any.

    Raises:
        KeysAway: the keys can't be fetched.
        FAULTS: it is not right.
    """
    algorithm, name = header.get("alg"), header.get("kid")
    found = [key for keys in sources for key in keys.find(name, algorithm)] if isinstance(algorithm, str) else []
    fault: Exception = ValueError("no key fits its algorithm and key id")
    for key in found:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                [str(algorithm)],
                options={"require": ["exp"]},
                leeway=LEEWAY,
                audience=audience,
                issuer=issuer,
            )
        except jwt.InvalidSignatureError as error:
            fault = error  # another key may fit
        else:
            return claims
    raise fault


def looks_like_token(password: bytes) -> bool:
    """Whether it has three parts, and begins as JSON does in base64."""
    return password.startswith(b"eyJ") and password.count(b".") == 2


def header_of(password: bytes) -> dict[str, Any] | None:
    """The header of a text that looks like a token, if it is one."""
    first = password.partition(b".")[0]
    try:
        header = read_json(base64.urlsafe_b64decode(first + b"=" * (-len(first) % 4)))
    except ValueError:
        return None
    return header if isinstance(header, dict) and "alg" in header else None
