"""The interface between the handlers of packets and the state of sessions, kept by one node or by a cluster.

The handlers implement the protocol. A coordinator stores state, and gets the agreement of other nodes. It calls back
when a packet may be sent to a client: `Admission.admit` and `welcome` for CONNECT, `done` for the others.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from ..._speedups.codec.packets import Connect
from ..._speedups.net.connection import Connection
from ..._speedups.session.journal import Journal
from ..._speedups.session.session import Session
from ..auth.cluster_users import Source
from ..config.declared_group import DeclaredGroup
from ..config.schema import Config
from ..core.calls import SECONDS, Arguments, RpcMethods, RpcReply, call, gather
from ..core.data_plane import DataPlane
from ..core.will import Will
from ..storage.store import Store
from ..streams.message_log import MessageLog
from .admission import Admission

Done = Callable[[], object]
QueueLimits = tuple[int, int, bool]  # messages, bytes, and whether the oldest message is dropped


class Delayed(NamedTuple):
    """A message to `$delayed/SECONDS/TOPIC` that waits."""

    id: str
    place: str  # in the order in which messages are due
    wait: int  # milliseconds until it is due; negative if it is late
    publisher: bytes  # client id; empty = the broker
    topic: bytes  # TOPIC
    qos: int
    retain: bool
    size: int  # bytes of the payload


class RedisUse(NamedTuple):
    """How full the cluster's Redis is."""

    sessions: int  # persistent ones of all nodes
    memory: int | None  # bytes; None: the user may not ask for it
    max_memory: int | None  # bytes; None: there is no limit, or the user may not ask for it


class Coordinator(ABC):
    """Owns journal and store; assigns sessions to connections."""

    journal: Journal
    store: Store
    data_plane: DataPlane
    methods: RpcMethods
    users: Source | None = None  # users of clients that the cluster stores

    def attach(self, data_plane: DataPlane, methods: RpcMethods) -> None:
        """Take the rest of the node; called once, before `start`.

        Args:
            data_plane: of the node.
            methods: run when a node calls them; more may be added later.
        """
        self.data_plane = data_plane
        self.methods = methods

    @property
    def message_log(self) -> MessageLog | None:
        """The log of messages, for streams; None: there is none."""
        return None

    @property
    def connected(self) -> bool:
        """Whether the cluster's Redis answers."""
        return True

    @property
    def node_id(self) -> str:
        """Identifies this node among all nodes of the cluster, past ones included."""
        return "node"

    @property
    def nodes(self) -> int:
        """Number of nodes of the cluster, this one included."""
        return 1

    @property
    def is_alone(self) -> bool:
        """Whether the node is none of a cluster."""
        return True

    def is_responsible(self, name: str) -> bool:
        """Whether this node, of all nodes, does the work of this name; in a change of nodes none or two may do it."""
        return True

    async def call_all(self, method: str, arguments: Arguments, seconds: float = SECONDS) -> dict[str, RpcReply]:
        """Call a method of every node, this one first: `node_id` -> its reply, or the failure after `seconds`."""
        mine = asyncio.ensure_future(call(self.methods, method, arguments))
        return await gather({self.node_id: mine}, seconds)

    # ---- life ----

    @abstractmethod
    async def start(self) -> None:
        """Read the stored state. Connections are accepted after this.

        Raises:
            NotNow: try again, with another coordinator.
            FlockError: the state can't be read, or the cluster can't be joined.
        """

    @abstractmethod
    def configure(self, config: Config) -> None:
        """The configuration was read again."""

    @abstractmethod
    def tick(self) -> None:
        """A quarter of a second has passed."""

    @abstractmethod
    async def drain(self, references: tuple[str, ...]) -> None:
        """The node accepts no clients any more: close the connections.

        Args:
            references: other servers for clients of level 5; empty: none [5: 4.11].
        """

    @abstractmethod
    async def stop(self) -> None:
        """All connections are closed: store all records, and close the store."""

    @abstractmethod
    def describe(self) -> str:
        """Where state is stored, as a sentence for the operator."""

    @abstractmethod
    def ready(self) -> tuple[bool, str]:
        """Whether the node accepts new clients, and the reason."""

    # ---- connections and sessions ----

    @abstractmethod
    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        """Give the connection the session of its client: call `admit`, later `welcome` of `admission`; or refuse."""

    @abstractmethod
    def ended(self, connection: Connection, session: Session | None) -> None:
        """A connection has closed: settle its session, and its will unless that was discarded.

        `session` is None when it had not been admitted yet.
        """

    @abstractmethod
    def discard_will(self, connection: Connection) -> None:
        """The client sent DISCONNECT: its will is not published [MQTT-3.14.4-3]."""

    def subscription_weight(self, connection: Connection, session: Session) -> int:
        """The weight of the subscriptions that a session has when all that was recorded has taken effect."""
        return session.subscription_weight

    def has_subscription(self, connection: Connection, session: Session, topic_filter: bytes) -> bool:
        """Whether a session has a subscription when all that was recorded has taken effect."""
        return self.data_plane.router.filters.has(session, topic_filter)

    @abstractmethod
    def subscribe(
        self, connection: Connection, session: Session, filters: list[tuple[bytes, int]], identifier: int, done: Done
    ) -> None:
        """Subscribe; `done` when messages published from then on, at any node, are delivered (G4).

        Args:
            connection, session: of the client.
            filters: topic filters with the options of their subscriptions.
            identifier: the subscription identifier of all of them; 0 = none.
            done: called without arguments.
        """

    @abstractmethod
    async def end_session(self, client_id: bytes) -> bool:
        """End a session and the connection that has it, wherever they are; False if there is no such session.

        Raises:
            NotNow: the store of the session does not reply; `stored_session` likewise.
        """

    def limit_queue(self, client_id: bytes, limits: QueueLimits | None) -> None:
        """Give the queue of a session limits of its own; None: those of the configuration.

        In a cluster it must exist, and they stay with the session; so a link repeats them at each connection.
        """
        self.data_plane.turn.limit_queue(client_id, limits)

    async def stored_session(self, client_id: bytes) -> dict[str, int] | None:
        """The queue of a session that is stored elsewhere: `queued_messages`, `queued_bytes`; None if there is none."""
        return None

    async def stored_waiting(self, groups: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """Messages and bytes that wait in shared subscriptions and are stored elsewhere, by their names."""
        return {}

    async def redis_use(self) -> RedisUse | None:
        """How full the cluster's Redis is; None: the node is alone.

        Raises:
            NotNow: Redis does not reply.
        """
        return None

    async def purge_group(self, name: bytes) -> int:
        """Drop the messages that wait in a shared subscription; returns their number.

        Raises:
            NotNow: the store of the group does not reply.
        """
        dropped = self.data_plane.router.filters.groups[name].purge()
        self.data_plane.end_turn()
        return dropped

    @abstractmethod
    async def declare_group(self, group: DeclaredGroup) -> None:
        """Let a shared subscription exist without members, or replace its settings.

        Raises:
            NotNow: the store of the group does not reply, or the cluster has no shared subscriptions yet.
            ValueError: a cluster does not have the strategy.
        """

    @abstractmethod
    async def remove_group(self, name: bytes) -> int | None:
        """Let a shared subscription exist by its members only. Without members it ends, and drops its messages.

        Returns:
            The number of dropped messages; None: it is not declared.

        Raises:
            NotNow: the store of the group does not reply.
        """

    def session_deadline(self, client_id: bytes) -> int | None:
        """Seconds until a session without a connection expires; None: never, or this node has no deadline for it."""
        return None

    async def waiting_wills(self) -> list[tuple[bytes, Will, int]]:
        """The delayed wills of ended connections: client id, will, seconds until it is published.

        In a cluster one of the nodes has all of them, the others have none.
        """
        return []

    async def cancel_will(self, client_id: bytes) -> bool:
        """Discard the delayed will of an ended connection; False if this node discarded none of this client."""
        return False

    @abstractmethod
    async def delayed_messages(self, prefix: bytes, without: bytes, after: str, limit: int) -> list[Delayed]:
        """The first delayed messages of this node, or of the cluster, in the order in which they are due.

        Args:
            prefix: how their TOPIC begins.
            without: how it does not begin; empty: any.
            after: `place` of the last one before; empty: from the first on.
            limit: their number.

        Raises:
            NotNow: the store of the messages does not reply; `cancel_delayed` likewise.
        """

    @abstractmethod
    async def cancel_delayed(self, message: str, prefix: bytes) -> bool:
        """Drop the delayed message with this id, if its TOPIC begins with `prefix`; whether there was one."""

    @abstractmethod
    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        """Unsubscribe; `done` when nothing new is put into the session's queue."""
