"""Authentication: credentials of a client, its verified identity, and the interface of an authenticator."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from _speedups.codec.reason_codes import ReasonCode
from _speedups.session.rights import Rights
from broker.auth.rules import Rules

__all__ = ["ANYBODY", "Authenticator", "Credentials", "Identity", "ReasonCode", "Verdict"]


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


@dataclass(frozen=True, slots=True)
class Identity:
    """The verified identity of a client: its session, its rights and its quotas are bound to it."""

    username: str | None = None  # verified; None = anonymous
    rights: Rights | None = None  # None = may publish and read everything
    expires: float | None = None  # seconds since 1970 at which the connection ends
    rules: Rules | None = None  # access rules of the user; None = it has none
    granted: Rights | None = None  # rights that an authenticator set, instead of rules
    method: str = ""  # name of the authentication method; empty = not verified
    listener: str = "default"  # name of the listener
    client_id: str = ""  # client id that was verified


ANYBODY = Identity()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of an authenticator."""

    code: ReasonCode
    identity: Identity = ANYBODY
    reason: str = ""  # for the log, when it is refused


class Authenticator(Protocol):
    """Decides over each CONNECT, at once or later; other packets of the connection wait. An exception refuses."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        """Whether the client is accepted, and its identity."""
