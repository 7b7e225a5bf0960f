"""A user whose credentials are stored, as a method of several steps looks it up, and a store of such users."""

from typing import NamedTuple, Protocol, runtime_checkable

from .authenticator import Identity
from .passwords import StoredHash


class Away(Exception):
    """The user can't be looked up for now."""


class StoredUser(NamedTuple):
    """A user of a store."""

    stored: StoredHash
    identity: Identity  # with the name of the store's method
    disabled: bool = False


@runtime_checkable
class UserStore(Protocol):
    """A method with stored credentials."""

    async def find_user(self, username: str) -> StoredUser | None:
        """The user; None: there is none. Raises Away."""

    def usual_rounds(self) -> int | None:
        """Rounds that most of its SCRAM credentials have; None: unknown."""
