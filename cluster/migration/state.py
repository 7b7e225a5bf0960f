"""The state of a broker as a migration moves it: neither as SQLite has it, nor as Redis has it.

Deadlines are milliseconds of the broker's own clock, whose present value is `State.clock`. Both stores have such a
clock, so deadlines move as they are, together with the clock.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ...broker.core.will import Will


class StoredMessage(NamedTuple):
    """A message. QoS and RETAIN are those with which it is sent, or stored."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes = b""
    deadline: int = 0  # 0 = it does not expire


class Share(NamedTuple):
    """The part of a message that is from a shared subscription."""

    group: bytes  # `$share/NAME/FILTER`
    place: int  # in the group
    key: int = -1  # hash, in a group with an order; -1 = none
    failures: int = 0  # deliveries without success << 8 | reason code of the last


class Queued(NamedTuple):
    """An entry of a session's queue that is not done."""

    message: StoredMessage | None  # None: PUBREC was received, so nothing but PUBREL is left to send
    as_published: bool = False  # level 5 gets its RETAIN
    identifiers: bytes = b""  # of subscriptions, as properties
    share: Share | None = None


class Waiting(NamedTuple):
    """A message that waits in a group."""

    share: Share
    message: StoredMessage


@dataclass(slots=True)
class StoredSession:
    """A persistent session. Its queue has the numbers from `head` to `tail` - 1; numbers that `queue` lacks are
    done."""

    client_id: bytes
    number: int  # unique
    level: int
    user: bytes = b""  # the verified user who owns it; empty: none
    interval: int | None = None  # Session Expiry Interval in seconds; None = as configured
    deadline: int = 0  # 0: it had a connection at the end, or does not expire
    head: int = 1
    tail: int = 1
    sent: int = 1  # all messages below this number may have been sent
    queue: dict[int, Queued] = field(default_factory=dict)
    awaiting: dict[int, StoredMessage] = field(default_factory=dict)  # QoS 2, by packet identifier: PUBREL awaited
    subscriptions: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # filter -> options, identifier


@dataclass(slots=True)
class StoredGroup:
    """A shared subscription, without what its subscribers have."""

    name: bytes
    declaration: bytes = b""  # settings as JSON; empty: it is not declared
    last: int = 0  # the last place that was given
    waiting: list[Waiting] = field(default_factory=list)


class StoredWill(NamedTuple):
    """A will that is not settled."""

    client_id: bytes
    will: Will
    due: int | None  # deadline, at least 1; None: the connection was there at the end, so its delay has not begun
    is_current: bool  # of the last connection of a session that is there: its client can still come back


class StoredDelayed(NamedTuple):
    """A message to `$delayed/SECONDS/TOPIC` that waits, or a staged chunk of a transaction."""

    publisher: bytes  # client id; empty: the broker
    message: StoredMessage  # to TOPIC, with its whole Message Expiry Interval among the properties
    due: int | None  # deadline; None: a staged chunk


# The documents of users and roles, by kind: names and documents. Kinds without any are left out.
Access = dict[str, list[tuple[str, bytes]]]


class State(ABC):
    """All that a place has. Each method is called once, in the order that they have here."""

    @property
    @abstractmethod
    def clock(self) -> int:
        """The clock of the broker, now, in milliseconds."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is nothing to move."""

    @abstractmethod
    def declarations(self) -> dict[bytes, bytes]:
        """The declared groups, and their settings as JSON."""

    @abstractmethod
    def sessions(self) -> Iterator[StoredSession]:
        """The persistent sessions."""

    @abstractmethod
    def groups(self) -> Iterator[StoredGroup]:
        """The groups that are declared, or have a persistent session as a subscriber."""

    @abstractmethod
    def retained(self) -> Iterator[StoredMessage]:
        """The retained messages, also the broker's."""

    @abstractmethod
    def wills(self) -> Iterator[StoredWill]:
        """The wills that are not settled, at most one that is current for each client."""

    @abstractmethod
    def delayed(self) -> Iterator[StoredDelayed]:
        """The delayed messages, in the order in which they will be published; then staged chunks, as they arrived."""

    def committed(self) -> dict[str, int]:
        """The number of the last transaction that was committed, by the key of its name."""
        return {}


@dataclass(slots=True)
class Moved:
    """How much was moved."""

    sessions: int = 0
    subscriptions: int = 0
    queued: int = 0
    groups: int = 0
    waiting: int = 0
    retained: int = 0
    wills: int = 0
    delayed: int = 0

    def __str__(self) -> str:
        return (
            f"{self.sessions} sessions with {self.subscriptions} subscriptions and {self.queued} queued messages, "
            f"{self.groups} shared subscriptions with {self.waiting} waiting messages, {self.retained} retained "
            f"messages, {self.wills} wills, {self.delayed} delayed messages"
        )


def wall_clock() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)
