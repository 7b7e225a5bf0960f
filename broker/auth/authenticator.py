"""Authentication: credentials of a client, its verified identity, and the interface of an authenticator."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.session.rights import Rights
from .rules import Rules

__all__ = [
    "ANYBODY",
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


class Identity(NamedTuple):
    """The verified identity of clients: their sessions, their rights and their quotas are bound to it."""

    username: str | None = None  # verified; None = anonymous
    rights: Rights | None = None  # None = may publish and read everything
    expires: float | None = None  # seconds since 1970 at which the connection ends
    rules: Rules | None = None  # access rules of the user; None = it has none
    roles: tuple[str, ...] = ()  # names of its roles, whose rules are added; with one it may do nothing else
    granted: Rights | None = None  # rights that an authenticator set, instead of rules
    method: str = ""  # name of the authentication method; empty = not verified
    listener: str = "default"  # name of the listener
    tenant: str = ""  # name of its tenant; empty = it has none
    claims: tuple[tuple[str, str], ...] = ()  # claims of its token that rules of tenants name
    credential: bytes = b""  # digest of the stored credentials that were verified; empty = none are stored

    def having(self, rights: Rights | None) -> "Identity":
        """The identity with these rights: `_replace` takes thrice as long, and a walk over clients does this often."""
        return Identity._make((self.username, rights, *self[2:]))


ANYBODY = Identity()
NO_RIGHTS = Rights(())


@lru_cache(SHARED)
def shared(identity: Identity) -> Identity:
    """One object for all clients with this identity: most clients of a listener are anonymous, or of few users."""
    return identity


@lru_cache(SHARED)
def verified(identity: Identity, method: str, listener: str) -> Identity:
    """The identity that an authentication method has found, for clients of a listener."""
    return identity._replace(granted=identity.rights, method=method, listener=listener)


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
