"""The messages that this node has received of queues that Redis may lose: up to a number, and QoS 2 that is not
completed.

Redis gives lost numbers to other messages. An acknowledgement that is still to be sent would end one of those; so the
ends of queues are compared. And a client that awaits PUBREL for a packet identifier takes another message with it for a
repetition, and drops it; so Redis gets back the messages that are not completed.
"""

from collections.abc import Iterator

from ..._speedups.base.msgpack import pack
from ..._speedups.cluster.redis_deliveries import unfinished
from ..._speedups.session.session import Session
from ...broker import logs
from ..peers.node_link import NodeLink
from .claim import Claims

AT_ONCE = 200  # sessions in a call ...
AT_ONCE_BYTES = 524_288  # ... unless their messages are large

Lost = tuple[bytes, int, list[tuple[int, bytes]]]  # client id, incarnation, and queue numbers with their entries
Ended = tuple[bytes, int, int, list[tuple[int, bytes]]]  # likewise, with the first unsent number before the entries

log = logs.get("flockmq.cluster")


class UnconfirmedMessages:
    """Gives Redis back what it has lost of the queues of this node's clients.

    Args:
        link: of this node.
        claims: of this node.
    """

    def __init__(self, link: NodeLink, claims: Claims) -> None:
        self._link = link
        self._claims = claims
        self._kept: dict[bytes, Ended] = {}  # of sessions whose release is not confirmed, by client id

    def keep(self, session: Session, sent: int, entries: list[tuple[int, bytes]]) -> Ended:
        """The connection of a session has ended: keep this until its release is stored, and `released` is called.

        Args:
            session: unloaded.
            sent: messages below this queue number may have been sent. (Redis may drop later ones: the queue is full.)
            entries: that were unfinished.
        """
        kept = (session.client_id, session.session_id, sent, entries)
        self._kept[session.client_id] = kept
        return kept

    def released(self, kept: Ended) -> None:
        """The release of a session is stored."""
        if self._kept.get(kept[0]) is kept:
            del self._kept[kept[0]]

    def numbers(self) -> list[tuple[bytes, int, int]]:
        """Client id, incarnation, and the queue number that Redis has to have reached, of sessions that were here."""
        return [
            *((one.client_id, one.session_id, one.next_number) for one in self._claims.shared_sessions()),
            *((client_id, incarnation, sent) for client_id, incarnation, sent, _ in self._kept.values()),
        ]

    async def restore(self) -> None:
        """Redis has lost data: give it back what it lacks of this. Raises as `NodeLink.ask`."""
        found: dict[bytes, Lost] = {}
        for client_id, incarnation, _, entries in self._kept.values():
            if entries:
                found[client_id] = (client_id, incarnation, entries)
        for session in self._claims.shared_sessions():
            found.pop(session.client_id, None)
            if entries := unfinished(session):
                found[session.client_id] = (session.client_id, session.session_id, entries)
        restored = 0
        for some in _pieces(list(found.values())):
            restored += await self._link.ask_function("restore", pack(some))
        if restored:
            log.info("Redis has got back messages that clients await PUBREL for", messages=restored)


def _pieces(lost: list[Lost]) -> Iterator[list[Lost]]:
    """The sessions, as many at a time as a call may have."""
    piece: list[Lost] = []
    size = 0
    for each in lost:
        piece.append(each)
        size += sum(len(entry) for _, entry in each[2])
        if len(piece) >= AT_ONCE or size >= AT_ONCE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
