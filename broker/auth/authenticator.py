"""Authentication: credentials of a client, its verified identity, and the interface of an authenticator."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.session.identity import Identity
from ..._speedups.session.rights import NOTHING as NO_RIGHTS

__all__ = [
    "ANYBODY",
    "NO_RIGHTS",
    "Authenticator",
    "Challenge",
    "Credentials",
    "Exchange",
    "Identity",
    "ReasonCode",
    "Step",
    "Verdict",
    "shared",
    "verified",
]

SHARED = 4096  # different identities that clients with equal ones share


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials in CONNECT, and the origin of the connection."""

    client_id: str
    username: str | None
    password: bytes | None
    address: str
    protocol_level: int
    listener: str = "default"  # name of the listener
    certificate: str | None = None  # subject of the verified client certificate
    server_name: str = ""  # that the client has named in the TLS handshake


ANYBODY = Identity()


@lru_cache(SHARED)
def shared(identity: Identity) -> Identity:
    """One object for all clients with this identity: most clients of a listener are anonymous, or of few users."""
    return identity


@lru_cache(SHARED)
def verified(identity: Identity, method: str, listener: str) -> Identity:
    """The identity that an authentication method has found, for clients of a listener."""
    return identity.replace(granted=identity.rights, method=method, listener=listener)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of an authenticator."""

    code: ReasonCode
    identity: Identity = ANYBODY
    reason: str = ""  # for the log, when it is refused
    data: bytes = b""  # authentication data of an accepted client, in CONNACK or AUTH


class Challenge(NamedTuple):
    """An exchange goes on: the client gets this data, and sends more."""

    data: bytes = b""


Step = Challenge | Verdict  # of an exchange [5: 4.12]; a verdict ends it


class Exchange(Protocol):
    """An authentication in steps; each authentication of a client gets one. An exception refuses."""

    def start(self, client: Credentials, data: bytes) -> Step | Awaitable[Step]:
        """The first step. `data` is the authentication data of CONNECT, or of the AUTH that begins; empty = none."""

    def step(self, data: bytes) -> Step | Awaitable[Step]:
        """A further step, with the authentication data of the client's AUTH."""


class Authenticator(Protocol):
    """Decides over each CONNECT, at once or later; other packets of the connection wait. An exception refuses."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        """Whether the client is accepted, and its identity."""

    def exchange(self, credentials: Credentials, method: str) -> Exchange | None:
        """An exchange of the authentication method that a client names; None: the method is unknown here."""
