"""The interfaces between the handlers of packets and the state of sessions, kept by one node or by a cluster.

The handlers implement the protocol. The parts of a coordinator store state, and get the agreement of other nodes. They
call back when a packet may be sent to a client: `Admission.admit` and `welcome` for CONNECT, `done` for the others.
A caller gets the part that it needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..._speedups.codec.packets import Connect
from ..._speedups.net.connection import Connection
from ..._speedups.session.journal import Journal
from ..._speedups.session.session import Session
from ..auth.access_store import AccessStore
from ..config.declared_group import DeclaredGroup
from ..config.schema import Config
from ..core.calls import SECONDS, Arguments, RpcMethods, RpcReply
from ..core.data_plane import DataPlane
from ..core.transactions import Outcome, StagedPart, Transaction
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


class ShardState(NamedTuple):
    """A shard of the cluster, as this node sees it."""

    connected: bool
    waiting: int  # blocks that its Redis has not confirmed
    latency: float  # seconds until the last ones were confirmed, at most


class Risk(NamedTuple):
    """A setting of the store that endangers acknowledged messages."""

    finding: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.finding}: {self.remedy}" if self.remedy else self.finding


class NodeLife(ABC):
    """Start, periodic work and end of the state of a node."""

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

    async def risks(self) -> Sequence[Risk]:
        """Settings of the store that endanger acknowledged messages.

        Raises:
            NotNow: the store does not reply.
        """
        return []

    @abstractmethod
    def ready(self) -> tuple[bool, str]:
        """Whether the node accepts new clients, and the reason."""

    @property
    @abstractmethod
    def message_log(self) -> MessageLog | None:
        """The log of messages, for streams; None: there is none."""


class LogReader(NamedTuple):
    """A program that reads the log of messages of a cluster: a job of Spark, a table of a lake, a pipe.

    Attributes:
        behind: bytes that it has yet to read.
        lost: bytes that were deleted before it read them.
        seconds: since it was last heard of.
    """

    name: str
    behind: int
    lost: int
    seconds: float


class Nodes(ABC):
    """The nodes of the cluster, or the only one."""

    @property
    @abstractmethod
    def node_id(self) -> str:
        """Identifies this node among all nodes of the cluster, past ones included."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of nodes of the cluster, this one included."""

    @property
    @abstractmethod
    def is_alone(self) -> bool:
        """Whether the node is none of a cluster."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the cluster's Redis answers."""

    @property
    def shards(self) -> list[ShardState]:
        """The shards of a cluster with several, in their order; else empty."""
        return []

    @abstractmethod
    def is_responsible(self, name: str) -> bool:
        """Whether this node, of all nodes, does the work of this name; in a change of nodes none or two may do it."""

    @abstractmethod
    async def call_all(self, method: str, arguments: Arguments, seconds: float = SECONDS) -> dict[str, RpcReply]:
        """Call a method of every node, this one first: `node_id` -> its reply, or the failure after `seconds`."""

    @abstractmethod
    async def redis_use(self) -> RedisUse | None:
        """How full the cluster's Redis is; None: the node is alone.

        Raises:
            NotNow: Redis does not reply.
        """

    async def log_readers(self) -> Sequence[LogReader]:
        """The programs that have registered as readers of the log, by name. A node alone knows none.

        Raises:
            NotNow: Redis does not reply.
        """
        return ()


class SessionOwner(ABC):
    """Assigns sessions to connections."""

    @abstractmethod
    def claim(self, admission: Admission, connection: Connection, packet: Connect) -> None:
        """Give the connection the session of its client: call `admit`, later `welcome` of `admission`; or refuse."""

    @abstractmethod
    def number_of(self, connection: Connection) -> int:
        """The number of an admitted connection: later ones of its client have higher numbers, at every node.

        0: the node has admitted it without Redis.
        """

    @abstractmethod
    def ended(self, connection: Connection, session: Session | None) -> None:
        """A connection has closed: settle its session, and its will unless that was discarded.

        `session` is None when it had not been admitted yet.
        """

    @abstractmethod
    def discard_will(self, connection: Connection) -> None:
        """The client sent DISCONNECT: its will is not published [MQTT-3.14.4-3]."""


class Subscribing(ABC):
    """The subscriptions that sessions have when all that was recorded has taken effect, and changes of them."""

    @abstractmethod
    def weight_of(self, connection: Connection, session: Session) -> int:
        """The weight of the subscriptions of a session."""

    @abstractmethod
    def has(self, connection: Connection, session: Session, topic_filter: bytes) -> bool:
        """Whether a session has a subscription."""

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
    def unsubscribe(self, connection: Connection, session: Session, filters: list[bytes], done: Done) -> None:
        """Unsubscribe; `done` when nothing new is put into the session's queue."""


class StoredSessions(ABC):
    """Sessions by their client ids, wherever they are stored."""

    @abstractmethod
    async def end(self, client_id: bytes) -> bool:
        """End a session and the connection that has it, wherever they are; False if there is no such session.

        Raises:
            NotNow: the store of the session does not reply; `stored` likewise.
        """

    @abstractmethod
    def limit_queue(self, client_id: bytes, limits: QueueLimits | None) -> None:
        """Give the queue of a session its own limits; None: the limits of the configuration.

        In a cluster it must exist, and they stay with the session; so a link repeats them at each connection.
        """

    @abstractmethod
    async def stored(self, client_ids: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        """Sessions that are stored elsewhere, by their client ids; others are left out.

        Each has `queued_messages`, `queued_bytes`, `session_expiry`, and `expires_in`, as the HTTP API shows them.
        """

    @abstractmethod
    def expires_in(self, client_id: bytes) -> int | None:
        """Seconds until a session without a connection expires; None: never, or this node has no deadline for it."""


class Groups(ABC):
    """Shared subscriptions, by their names."""

    @abstractmethod
    async def waiting(self, groups: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """Messages and bytes that wait in shared subscriptions and are stored elsewhere, by their names.

        Raises:
            NotNow: the store of the groups does not reply; the other methods likewise.
        """

    @abstractmethod
    async def purge(self, name: bytes) -> int:
        """Drop the messages that wait in a shared subscription; returns their number."""

    @abstractmethod
    async def declare(self, group: DeclaredGroup) -> None:
        """Let a shared subscription exist without subscribers, or replace its settings.

        Raises:
            NotNow: also if the cluster has no shared subscriptions yet.
            ValueError: a cluster does not have the strategy.
        """

    @abstractmethod
    async def remove(self, name: bytes) -> int | None:
        """Let a shared subscription exist by its subscribers only. Without subscribers it ends, and drops its messages.

        Returns:
            The number of dropped messages; None: it is not declared.
        """


class DelayedWills(ABC):
    """The delayed wills of ended connections."""

    @abstractmethod
    async def waiting(self) -> list[tuple[bytes, Will, int]]:
        """Client id, will, seconds until it is published. In a cluster one of the nodes has all of them."""

    @abstractmethod
    async def cancel(self, client_id: bytes) -> bool:
        """Discard the will of a client; False if this node discarded none."""


class DelayedMessages(ABC):
    """The messages to `$delayed/SECONDS/TOPIC` that wait, of this node or of the cluster."""

    @abstractmethod
    async def waiting(self, prefix: bytes, without: bytes, after: str, limit: int) -> list[Delayed]:
        """The first messages, in the order in which they are due.

        Args:
            prefix: how their TOPIC begins.
            without: how it does not begin; empty: any.
            after: `place` of the last one before; empty: from the first on.
            limit: their number.

        Raises:
            NotNow: the store of the messages does not reply; `cancel` likewise.
        """

    @abstractmethod
    async def cancel(self, message: str, prefix: bytes) -> bool:
        """Drop the message with this id, if its TOPIC begins with `prefix`; whether there was one."""


class Transactions(ABC):
    """The transactions of clients, at this node or in the cluster. Their chunks are delayed messages, never due.

    All methods raise NotNow: the store of the messages does not reply, and may have done it or not.
    """

    @abstractmethod
    async def stage(self, transaction: Transaction, part: str, chunk: int, rows: bytes, publisher: bytes) -> Outcome:
        """Keep a chunk of a part until the commit; a chunk that is kept already has no effect.

        Args:
            transaction: of the part.
            part: its name.
            chunk: its place in the part, from 0 on; MISSING: earlier chunks are not there.
            rows: its messages (`stage_rows`).
            publisher: client id.
        """

    @abstractmethod
    async def commit(self, transaction: Transaction, parts: Mapping[str, int]) -> Outcome:
        """Publish the messages of all parts; MISSING: a part has another number of chunks, and nothing is published.

        Other parts of this transaction, and of earlier ones of its name, are dropped.

        Args:
            transaction: of the parts.
            parts: number of chunks of each.
        """

    @abstractmethod
    async def parts(self, limit: int) -> Sequence[StagedPart]:
        """The parts that wait for their commit, in the order in which they expire; `limit`: their number at most."""


class Coordinator(NamedTuple):
    """The parts that keep the state of a node. All belong to one data plane."""

    life: NodeLife
    nodes: Nodes
    owner: SessionOwner
    subscribing: Subscribing
    sessions: StoredSessions
    groups: Groups
    wills: DelayedWills
    delayed: DelayedMessages
    transactions: Transactions


class Foundation(ABC):
    """Journal and store of a node: its data plane stands on them, and its coordinator on both."""

    journal: Journal
    store: Store
    access: AccessStore  # users and roles

    @abstractmethod
    def build(self, data_plane: DataPlane, methods: RpcMethods) -> Coordinator:
        """Build the coordinator; called once.

        Args:
            data_plane: of the node.
            methods: run when a node calls them; more may be added later.
        """
