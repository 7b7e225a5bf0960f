"""Loading: the queue and the QoS states of a session, read from Redis before its client gets CONNACK."""

from collections import deque
from collections.abc import Callable
from functools import partial

from ..._speedups.cluster.message_codec import decode_message, split_heads
from ..._speedups.cluster.redis_deliveries import arrive
from ..._speedups.protocol import close_reasons
from ..._speedups.session import session_store
from ..._speedups.session.session import Session
from ..._speedups.session.session_store import Restored
from ...broker import logs
from ..peers.node_link import NodeLink
from ..redis.link import LinkLost, Reply, ReplyError
from ..redis.packed_session import entries_of
from .claim import Claim

AT_ONCE = 500  # queued messages read with one call
MAX_CALLS = 8  # such calls under way: Redis closes a link with too much pending output

log = logs.get("flockmq.connect")


class Loading:
    """Reads sessions, several at a time.

    Args:
        link: of this node.
        on_loaded: called with the claim and its session when all of the session is read.
        clock_of: returns the time of the turn's clock for a deadline in Redis.
    """

    def __init__(
        self, link: NodeLink, on_loaded: Callable[[Claim, Session], object], clock_of: Callable[[int], int]
    ) -> None:
        self._link = link
        self._clock_of = clock_of
        self._on_loaded = on_loaded
        self._waiting: deque[tuple[Claim, Session, int]] = deque()  # with the queue number to read from
        self._calls = 0  # under way

    def load(self, claim: Claim, session: Session) -> None:
        """Read the session of a claim."""
        session_store.load(session)
        self._enqueue(claim, session, 1)

    def take(self, claim: Claim, session: Session, head: int, sent: int, queue: bytes) -> None:
        """Take the session of a claim, which is in the reply of its claim."""
        session_store.load(session)
        entries = entries_of(queue)
        self._take(claim, session, [head, sent, head, entries, head + len(entries), [], [], 0], begins=True)

    def cancel(self) -> None:
        """The link is lost: read nothing more."""
        self._waiting.clear()

    def _enqueue(self, claim: Claim, session: Session, first: int) -> None:
        self._waiting.append((claim, session, first))
        self._call()

    def _call(self) -> None:
        while self._waiting and self._calls < MAX_CALLS:
            claim, session, first = self._waiting.popleft()
            if not claim.connection.closed:
                self._calls += 1
                then = partial(self._loaded, claim, session, first == 1)
                self._link.function(then, "load", claim.client_id, first, AT_ONCE)

    def _loaded(self, claim: Claim, session: Session, begins: bool, reply: Reply) -> None:
        self._calls -= 1
        if not claim.connection.closed:  # else the claim ended when the connection closed
            self._take(claim, session, reply, begins=begins)
        self._call()

    def _take(self, claim: Claim, session: Session, reply: Reply, *, begins: bool) -> None:
        try:
            self._restore(claim, session, begins, reply)
        except ValueError as error:
            log.error("unreadable session", client_id=claim.packet.client_id, reason=error)
            claim.connection.close(close_reasons.SESSION_UNREADABLE)

    def _restore(self, claim: Claim, session: Session, begins: bool, reply: Reply) -> None:
        if isinstance(reply, ReplyError) and str(reply).startswith("DAMAGED "):
            raise ValueError(reply)
        if isinstance(reply, (LinkLost, ReplyError)):
            claim.connection.close(close_reasons.REDIS_AWAY)
            return
        head, sent, first, entries, tail, states, awaited, claim.held_will = reply
        if begins:
            session_store.restore(session, head, sent)
        for number, message in enumerate(entries, first):
            arrive(session, number, message)
        if first + len(entries) < tail:
            self._enqueue(claim, session, first + len(entries))
            return
        for number, state in zip(states[::2], states[1::2], strict=True):
            if state == b"r":
                session_store.restore_received(session, int(number))
            else:
                session_store.restore_done(session, int(number))
        for packet_id, stored in zip(awaited[::2], awaited[1::2], strict=True):
            number, progress, message = split_heads(stored)
            topic, payload, qos, retain, properties, deadline = decode_message(message)
            expires = self._clock_of(deadline)
            restored = Restored(0, qos, retain, topic, payload, properties, expires)
            session_store.restore_awaiting(session, int(packet_id), restored, progress, number)
        session_store.end_restore(session, claim.all_sent)
        self._on_loaded(claim, session)
