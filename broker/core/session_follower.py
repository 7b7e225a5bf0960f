"""Features that follow the sessions of connected clients: one row each where the broker is put together."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..._speedups.codec.packets import Connect, Subscribe
from ..._speedups.net.connection import Connection
from ..._speedups.session.session import Session
from .topic_filters import STREAM


class Subscription(NamedTuple):
    """A granted subscription of a session."""

    name: bytes  # the topic filter, with all its parts
    options: int  # as in SUBSCRIBE, within the limits of the node
    identifier: int = 0  # the subscription identifier; 0 = none
    is_new: bool = True  # the session had no subscription of this name

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream."""
        return self.name.startswith(STREAM.encode())


class SessionFollower(Protocol):
    """A feature that is notified of connections and of subscriptions."""

    def attached(self, connection: Connection, session: Session, packet: Connect, *, present: bool) -> None:
        """A client has connected, and has got CONNACK; `present` is its Session Present."""

    def subscribing(self, session: Session, added: Sequence[Subscription], packet: Subscribe | None) -> None:
        """A session gets subscriptions: for records in the same turn. Without a packet the configuration has them."""

    def subscribed(self, session: Session, added: Sequence[Subscription]) -> None:
        """Subscriptions hold everywhere, and SUBACK was sent."""

    def unsubscribed(self, session: Session, topic_filters: Sequence[str]) -> None:
        """A session loses its subscriptions with these topic filters, as far as it has them."""

    def detached(self, session: Session) -> None:
        """The client's connection has ended."""


Followers = tuple[SessionFollower, ...]
