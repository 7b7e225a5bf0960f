"""What a broker asks of whoever keeps its sessions: one node alone, or a cluster.

The handlers know the protocol, a coordinator knows where state lives and who else has to agree. It calls back when
something may be said to a client: `admit` after a session is this connection's, `done` when a promise is kept.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from _speedups.codec.packets import Connect
from _speedups.net.connection import Connection
from _speedups.session.journal import Journal
from _speedups.session.session import Session
from broker.auth.cluster_users import Source
from broker.config.schema import Config
from broker.core.calls import SECONDS, Answer, Arguments, answer, gather
from broker.storage.store import Store

if TYPE_CHECKING:
    from broker.broker import Broker

Done = Callable[[], object]


class Coordinator(ABC):
    """Owns journal and store; decides which connection has which session."""

    journal: Journal
    store: Store
    broker: "Broker"
    connected = True  # the cluster's Redis answers
    users: Source | None = None  # of clients, that the cluster keeps

    @property
    def node_id(self) -> str:
        """What tells this node from all others of the cluster, ever."""
        return "node"

    @property
    def nodes(self) -> int:
        """Of the cluster, this one included."""
        return 1

    async def ask_all(self, question: str, arguments: Arguments, seconds: float = SECONDS) -> dict[str, Answer]:
        """Ask every node, this one first: its `node_id` -> what it says, or why it says nothing within `seconds`."""
        mine = asyncio.ensure_future(answer(self.broker.questions, question, arguments))
        return await gather({self.node_id: mine}, seconds)

    # ---- life ----

    @abstractmethod
    async def start(self) -> None:
        """Read what is kept. Connections are accepted after this.

        Raises:
            NotNow: try again, with another coordinator.
            FlockError: it can't be read, or the others can't be joined.
        """

    @abstractmethod
    def configure(self, config: Config) -> None:
        """The configuration was read again."""

    @abstractmethod
    def tick(self) -> None:
        """A quarter of a second has passed."""

    @abstractmethod
    async def drain(self) -> None:
        """The node is to stop: nothing more is accepted; let the clients go."""

    @abstractmethod
    async def stop(self) -> None:
        """All clients have gone: keep what was said, and let go."""

    @abstractmethod
    def describe(self) -> str:
        """What is kept where, in words for the operator."""

    @abstractmethod
    def ready(self) -> tuple[bool, str]:
        """Whether new clients are welcome, and why."""

    # ---- connections and sessions ----

    @abstractmethod
    def claim(self, connection: Connection, packet: Connect) -> None:
        """Give the connection its client's session: call `connect.admit`, later `connect.welcome`; or refuse."""

    @abstractmethod
    def ended(self, connection: Connection, session: Session | None) -> None:
        """A connection is closed: its will, unless it was discarded, and its session are to be settled.

        `session` is None when it had not been admitted yet.
        """

    @abstractmethod
    def discard_will(self, connection: Connection) -> None:
        """The client said DISCONNECT: its will is not to be published [MQTT-3.14.4-3]."""

    @abstractmethod
    def subscribe(self, connection: Connection, session: Session, filters: list[tuple[bytes, int]], done: Done) -> None:
        """Subscribe; `done` when what is published from then on, anywhere, is delivered (G4)."""

    @abstractmethod
    async def end_session(self, client_id: bytes) -> bool:
        """End a session and the connection that has it, wherever they are; False if there is no such session.

        Raises:
            NotNow: who keeps it does not answer; `stored_session` likewise.
        """

    async def stored_session(self, client_id: bytes) -> dict[str, int] | None:
        """What waits for a session that is kept elsewhere: `queued_messages`, `queued_bytes`; None if none is."""
        return None

    @abstractmethod
    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        """Unsubscribe; `done` when nothing new is put into the session's queue."""
