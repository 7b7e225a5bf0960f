"""OAUTHBEARER (RFC 7628): a JSON Web Token, as an authentication method; tokens.py accepts the same token as a
password.

Its use is to authenticate again: a client that gets a new token stays connected when the old one expires.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from .authenticator import Challenge, Credentials, ReasonCode, Step, Verdict
from .gs2 import parse_header

NAME = "OAUTHBEARER"
SEPARATOR = "\1"
SCHEME = "bearer "
ANONYMOUS_NAMES = ("", "jwt")  # in CONNECT: the token has the name

Authenticate = Callable[[Credentials], Verdict | Awaitable[Verdict] | None]


class OAuthBearer:
    """One exchange.

    Args:
        authenticate: decides over a client with a token as password; None: it is no token.
    """

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate
        self._client: Credentials

    async def start(self, client: Credentials, data: bytes) -> Step:
        """Take the token, or ask for it."""
        self._client = client
        return await self.step(data) if data else Challenge()

    async def step(self, data: bytes) -> Step:
        """Take the token."""
        client = self._client
        try:
            header = parse_header(data.decode())
            token = _token(header.rest)
        except ValueError as error:
            return Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason=str(error))
        if header.authorization and client.username not in (None, *ANONYMOUS_NAMES, header.authorization):
            return Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="it names another user than CONNECT")
        username = header.authorization or client.username or ""
        answer = self._authenticate(replace(client, username=username, password=token.encode()))
        verdict = await answer if isinstance(answer, Awaitable) else answer
        return verdict or Verdict(ReasonCode.BAD_USERNAME_OR_PASSWORD, reason="it sent no token")


def _token(message: str) -> str:
    """The token of a message: pairs such as `auth=Bearer TOKEN`, each with its separator.

    Raises:
        ValueError: there is none.
    """
    first, *pairs = message.split(SEPARATOR)
    if first or pairs[-2:] != ["", ""]:
        raise ValueError("its message is not one of OAUTHBEARER")
    found = [value for name, _, value in (pair.partition("=") for pair in pairs) if name == "auth"]
    if len(found) != 1 or not found[0].lower().startswith(SCHEME):
        raise ValueError("its message has no bearer token")
    return found[0][len(SCHEME) :].strip()
