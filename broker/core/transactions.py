"""Transactions: messages that are staged in parts, and published all together or not at all.

A client stages the chunks of a part under `$transaction/NAME/NUMBER/PART/CHUNK`, and commits with
`$transaction/NAME/NUMBER`. Staged chunks are delayed messages that are never due; the commit makes them due. The
numbers of a name rise: a transaction whose number is not above that of the last commit was published, and is dropped.
"""

from enum import Enum
from typing import NamedTuple
from urllib.parse import quote, unquote

from . import tenants

ROOT = "$transaction/"
PROPERTY = "flockmq-transactions"  # user property of a CONNECT that asks for them, and of the CONNACK that offers them


class Outcome(Enum):
    """The result of staging a chunk, or of a commit."""

    DONE = "it is stored"
    COMMITTED = "the transaction was committed before"
    MISSING = "an earlier chunk, or a part, is not there"
    FULL = "there is no room"


class Transaction(NamedTuple):
    """A transaction of a user.

    Attributes:
        prefix: of the user's tenant; empty: none.
        user: empty: clients without a user name.
        name: as its client has given it; it has no slash.
        number: likewise; later transactions of the name have higher numbers.
    """

    prefix: str
    user: str
    name: str
    number: int

    @property
    def key(self) -> str:
        """The name within the broker: two users' names never meet."""
        return f"{self.prefix}{quote(self.user, safe='')}/{self.name}"

    @property
    def tenant(self) -> str:
        """The tenant of the user; empty: none."""
        return tenants.name_of(self.prefix)

    def topic(self, part: str, chunk: int) -> bytes:
        """The topic name of a chunk within the broker."""
        prefix = self.prefix
        return f"{prefix}{ROOT}{self.key.removeprefix(prefix)}/{self.number}/{part}/{chunk}".encode()

    @classmethod
    def of_key(cls, key: str, number: int) -> "Transaction":
        """The transaction with this key."""
        prefix, rest = tenants.split(key.encode())
        user, _, name = rest.rpartition("/")
        return cls(prefix, unquote(user), name, number)


def is_chunk(topic: bytes) -> bool:
    """Whether a topic name within the broker is a chunk's."""
    return tenants.split(topic)[1].startswith(ROOT)


def split_topic(topic: bytes) -> tuple[Transaction, str, int]:
    """The transaction, the part and the number of a chunk with this topic name within the broker."""
    prefix, rest = tenants.split(topic)
    user, name, number, part, chunk = rest.removeprefix(ROOT).split("/")
    return Transaction(prefix, unquote(user), name, int(number)), part, int(chunk)


class StagedPart(NamedTuple):
    """A part that waits for its commit."""

    transaction: Transaction
    part: str
    chunks: int
    size: int  # bytes
    expires_in: int  # milliseconds
