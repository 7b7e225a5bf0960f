"""Who may connect: what a client shows, who it is found to be, and the interface of whoever decides."""

from collections.abc import Awaitable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from _speedups.session.rights import Rights
from broker.auth.rules import Rules


class ReturnCode(IntEnum):
    """Return codes of CONNACK at levels 3 and 4."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USERNAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client says of itself in CONNECT, and where it comes from."""

    client_id: str
    username: str | None
    password: bytes | None
    address: str
    protocol_level: int
    listener: str = "default"  # name of the listener that it came to
    certificate: str | None = None  # subject of the certificate that it showed and that was verified


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client was found to be: its session, its rights and its quotas are bound to it."""

    username: str | None = None  # verified; None = anonymous
    rights: Rights | None = None  # None = may publish and read everything
    expires: float | None = None  # seconds since 1970 at which the connection ends
    rules: Rules | None = None  # of access, that came with the user; None = none did
    granted: Rights | None = None  # what whoever verified it gave as `rights`, instead of rules
    method: str = ""  # name of the way in which it was verified; empty = not at all
    listener: str = "default"  # that it came to
    client_id: str = ""  # in whose name it was verified


ANYBODY = Identity()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an authenticator says of a CONNECT."""

    code: ReturnCode
    identity: Identity = ANYBODY
    reason: str = ""  # for the log, when it is refused


class Authenticator(Protocol):
    """Decides over each CONNECT. May answer later; the connection's other packets wait. An exception refuses."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        """Whether the client may come in, and who it is."""
