"""The state in a persistence file of Mosquitto, as a migration moves it.

FlockMQ derives the packet identifier of a message from its queue number. Mosquitto numbers the messages of a session
likewise, so messages in flight keep their numbers; messages that wait, whose identifiers no client has seen, follow
without gaps.
"""

from collections.abc import Iterator

from ..._speedups.codec.topics import is_shared
from ...broker.config.schema import Config
from ...broker.core.session_expiry import NEVER, limited
from ...broker.core.subscription_options import MAXIMUM_QOS
from .mosquitto_file import (
    QUEUED,
    RESEND_PUBCOMP,
    RESEND_PUBREL,
    WAIT_FOR_PUBCOMP,
    Chunk,
    CutFile,
    Delivery,
    Retained,
    StoredClient,
    StoredSubscription,
)
from .mosquitto_file import StoredMessage as FileMessage
from .state import (
    Queued,
    State,
    StoredDelayed,
    StoredGroup,
    StoredMessage,
    StoredSession,
    StoredWill,
    wall_clock,
)

PACKET_IDS = 65_535
SHOWN = 3  # client ids in a sentence
BOTH_SIDES = {RESEND_PUBREL, WAIT_FOR_PUBCOMP}  # both have received: nothing but PUBREL and PUBCOMP is left


class MosquittoState(State):
    """The contents of the chunks of a file.

    Args:
        chunks: of the file.
        config: of the nodes to be.
        keeps_users: whether a session belongs to the user name that its client gave.
        takes_part: whether a file that ends within a chunk is read up to there.

    Raises:
        DamagedFile: a chunk is not right, or the file is cut and `takes_part` is false.
    """

    def __init__(
        self, chunks: Iterator[Chunk], config: Config, *, keeps_users: bool = True, takes_part: bool = False
    ) -> None:
        self._config = config
        self._keeps_users = keeps_users
        self._clock = wall_clock()
        self._messages: dict[int, StoredMessage] = {}
        self._clients: dict[bytes, StoredClient] = {}
        self._deliveries: dict[bytes, list[Delivery]] = {}
        self._subscriptions: dict[bytes, dict[bytes, tuple[int, int]]] = {}
        self._retained: dict[bytes, StoredMessage] = {}
        self._missing = self._qos_0 = 0
        self._cut = ""
        try:
            for chunk in chunks:
                self._take(chunk)
        except CutFile as cut:
            if not takes_part:
                raise
            self._cut = str(cut)
        self._sessions = [*self._made()]
        for found in (self._deliveries, self._subscriptions):
            self._missing += sum(len(of) for client_id, of in found.items() if client_id not in self._clients)

    def _take(self, chunk: Chunk) -> None:
        if isinstance(chunk, FileMessage):
            store_id, topic, payload, qos, retain, properties, expires = chunk
            self._messages[store_id] = StoredMessage(topic, payload, qos, retain, properties, expires * 1000)
        elif isinstance(chunk, StoredClient):
            self._clients[chunk.client_id] = chunk
        elif isinstance(chunk, Delivery):
            self._deliveries.setdefault(chunk.client_id, []).append(chunk)
        elif isinstance(chunk, StoredSubscription):
            filters = self._subscriptions.setdefault(chunk.client_id, {})
            filters[chunk.topic_filter] = (chunk.options, chunk.identifier)
        elif (message := self._message(chunk)) is not None:
            self._retained[message.topic] = message._replace(retain=True)

    def _message(self, chunk: Retained | Delivery) -> StoredMessage | None:
        message = self._messages.get(chunk.store_id)
        self._missing += message is None
        return message

    # ---- sessions ----

    def _made(self) -> Iterator[StoredSession]:
        """The sessions that outlive their connections."""
        for number, (client_id, client) in enumerate(self._clients.items(), 1):
            if client_id and not ends_with_connection(client):
                session = StoredSession(client_id, number, 4)
                session.subscriptions = self._subscriptions.get(client_id, {})
                self._set_expiry(session, client)
                if self._keeps_users:
                    session.user = client.user
                self._fill_queue(session, client)
                yield session

    def _set_expiry(self, session: StoredSession, client: StoredClient) -> None:
        """The level is not in the file: a session whose interval has an end, or with options of level 5, is of that."""
        options = session.subscriptions.values()
        is_level_5 = any(identifier or option & ~MAXIMUM_QOS for option, identifier in options)
        if client.interval not in (None, 0, NEVER) or is_level_5:
            session.level = 5
            session.interval = limited(client.interval or NEVER, self._config.mqtt)
        configured = self._config.mqtt.session_expiry
        if session.interval is None:
            left = client.left + round(configured) if client.left else client.expires
            session.deadline = left * 1000 if configured else 0
        elif session.interval != NEVER:
            session.deadline = client.expires * 1000 or self._clock + session.interval * 1000

    def _fill_queue(self, session: StoredSession, client: StoredClient) -> None:
        deliveries = self._deliveries.pop(session.client_id, [])
        for delivery in deliveries:
            if not delivery.outgoing and delivery.qos == 2 and delivery.state != RESEND_PUBCOMP:
                message = self._message(delivery)
                if message is not None:
                    session.awaiting[delivery.packet_id] = message._replace(qos=2)
        outgoing = [delivery for delivery in deliveries if delivery.outgoing and delivery.qos]
        self._qos_0 += sum(delivery.outgoing and not delivery.qos for delivery in deliveries)
        first = outgoing[0].packet_id if outgoing else client.last_packet_id % PACKET_IDS + 1
        session.head = session.tail = session.sent = first
        for delivery in outgoing:
            self._queue(session, delivery)

    def _queue(self, session: StoredSession, delivery: Delivery) -> None:
        """Queue a message for the client."""
        entry = Queued(None)
        if delivery.state not in BOTH_SIDES:
            message = self._message(delivery)
            if message is None:
                return
            entry = Queued(message._replace(qos=delivery.qos, retain=delivery.retain), identifiers=delivery.identifiers)
        n = session.tail
        if delivery.state != QUEUED:
            n += (delivery.packet_id - n) % PACKET_IDS  # the next number with this packet identifier
        session.queue[n] = entry
        session.tail = n + 1
        if delivery.dup or entry.message is None:
            session.sent = session.tail

    # ---- what a migration moves ----

    @property
    def clock(self) -> int:
        return self._clock

    @property
    def is_empty(self) -> bool:
        return not (self._sessions or self._retained)

    def declarations(self) -> dict[bytes, bytes]:
        return {}

    def sessions(self) -> Iterator[StoredSession]:
        return iter(self._sessions)

    def groups(self) -> Iterator[StoredGroup]:
        joined = (name for session in self._sessions for name in session.subscriptions if is_shared(name))
        return (StoredGroup(name) for name in dict.fromkeys(joined))

    def retained(self) -> Iterator[StoredMessage]:
        return iter(self._retained.values())

    def wills(self) -> Iterator[StoredWill]:
        return iter(())

    def delayed(self) -> Iterator[StoredDelayed]:
        return iter(())

    def losses(self) -> list[str]:
        """The parts that are not moved, in sentences."""
        found = []
        if self._cut:
            found.append(f"{self._cut}: what stood there and after it is missing")
        if self._missing:
            found.append(f"{self._missing} entries name a message or a client that the file does not have")
        if self._qos_0:
            found.append(f"{self._qos_0} queued messages of QoS 0 stay behind: FlockMQ queues QoS 1 and 2")
        unclear = [client_id for client_id, client in self._clients.items() if client.interval == 0]
        for ends, sentence in (
            (True, "stay behind: they end with their connections"),
            (False, "never expire: they are those of bridges, or as old as Mosquitto 1.5"),
        ):
            if some := [client_id for client_id in unclear if ends_with_connection(self._clients[client_id]) == ends]:
                names = ", ".join(client_id.decode() for client_id in some[:SHOWN])
                found.append(f"{len(some)} sessions ({names}{', ...' * (len(some) > SHOWN)}) {sentence}")
        return found


def ends_with_connection(client: StoredClient) -> bool:
    """Whether a session was there only because its client was connected.

    Mosquitto 2 also writes an interval of 0 for sessions of its bridges, and for sessions that it has read from a file
    of version 3 or 4: they have no listener.
    """
    return client.interval == 0 and client.port > 0
