"""Who may connect: the interface, and the first one, which lets everybody in."""

from collections.abc import Awaitable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


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


class Authenticator(Protocol):
    """Decides over each CONNECT. May answer later; the connection's other packets wait. An exception refuses."""

    def authenticate(self, credentials: Credentials) -> ReturnCode | Awaitable[ReturnCode]:
        """ACCEPTED, or the code that the client is refused with."""


class AllowAll:
    """Lets everybody in."""

    def authenticate(self, credentials: Credentials) -> ReturnCode:
        return ReturnCode.ACCEPTED
