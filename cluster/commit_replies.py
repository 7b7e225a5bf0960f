"""The effects of a commit at this node, when Redis has replied to it."""

from typing import Any

from .._speedups.session.session import Session
from .._speedups.session.subscriber import SessionKind
from .._speedups.session.turn import COUNTERS
from ..broker.core.data_plane import DataPlane
from .peers.node_link import NodeLink
from .replication.replica import Replica
from .replication.snapshot import read_tail
from .sessions.assignments import Assignments
from .sessions.damaged_keys import DamagedKeys

DROPPED_QUEUE_FULL = COUNTERS.index("dropped_queue_full")
EXPIRED = COUNTERS.index("expired")


class CommitReplies:
    """Passes what a reply has to the parts of this node; see `CommitListener`.

    Args:
        plane: of this node.
        link: of this node.
        replica: of this node.
        assignments: of this node.
        damaged: of this node.
    """

    def __init__(
        self, plane: DataPlane, link: NodeLink, replica: Replica, assignments: Assignments, damaged: DamagedKeys
    ) -> None:
        self._plane = plane
        self._link = link
        self._replica = replica
        self.assigned = assignments.receive
        self.given = assignments.receive_given
        self.damaged = damaged.report

    def changed(self, number: int, records: list[tuple[Any, ...]]) -> None:
        self._replica.barrier.made(number)
        self._replica.changes.apply(number, self._link.node_id, records)
        self._replica.applied.note(self._link.node_id, number)

    def dropped(self, count: int, by_client: dict[bytes, int], expired: int) -> None:
        self._plane.turn.count(DROPPED_QUEUE_FULL, count)
        self._plane.turn.count(EXPIRED, expired)
        self._plane.turn.add_full_queues(by_client)

    def unnumbered(self, sessions: list[Session]) -> None:
        for session in sessions:
            if session.owner is not None and session.kind == SessionKind.SHARED:
                read_tail(self._link, session)
