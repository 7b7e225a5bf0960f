"""Inbox: messages of other nodes, and of the functions in Redis, to this node. Batches do not pass through Python."""

from collections.abc import Callable, Mapping
from typing import Any

from ..._speedups.base.msgpack import DamagedMessage, unpack
from ..._speedups.cluster.redis_deliveries import arrive
from ..._speedups.session.subscriber import SessionKind
from ...broker import logs
from ...broker.core.data_plane import DataPlane
from ..peers import wire
from ..peers.node_link import NodeLink
from ..replication.replica import Replica

log = logs.get("flockmq.cluster")


class Inbox:
    """Decodes each message and passes it on.

    Args:
        plane: of this node.
        link: of this node.
        replica: the replicated state of this node.
        handlers: functions for further kinds of messages; the fields are their arguments.
    """

    def __init__(
        self, plane: DataPlane, link: NodeLink, replica: Replica, handlers: Mapping[bytes, Callable[..., object]]
    ) -> None:
        self._plane = plane
        self._link = link
        self._members = replica.members
        self._changes = replica.changes
        self._barrier = replica.barrier
        self._applied = replica.applied
        self._handlers: dict[bytes, Callable[..., object]] = {
            b"changes": self._handle_changes,
            b"pushed": self._handle_pushed,
            b"applied": replica.barrier.node_applied,
            b"all_applied": replica.barrier.all_applied,
            b"back": self._handle_back,
            b"credit": self._members.receive_credit,
            b"access": replica.access.receive,
            b"result": replica.results.publish,
            **handlers,
        }
        self.receive = replica.members.batches(self._receive).receive  # called with channel and message
        self._apart: list[bytes] = []  # large messages of the next message that is an array

    def _receive(self, payload: bytes) -> None:
        if self._link.closed:
            return
        if wire.is_apart(payload):
            self._apart.append(payload)
            return
        try:
            kind, *fields = wire.decode(payload)
            if self._apart:
                wire.fill(fields, self._apart)
                self._apart.clear()  # some may be of an array that was lost with an earlier link
        except DamagedMessage as error:
            log.error("invalid message between nodes", error=error)
            return
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(*fields)

    def finish(self) -> None:
        """All received data is processed, and the turn will end."""
        if not self._link.closed:
            self._applied.report()

    def _handle_changes(self, number: int, origin: bytes, block: bytes) -> None:
        if number <= self._changes.last or origin == self._link.node_id:
            return
        self._changes.apply(number, origin, unpack(block))
        if origin:
            self._applied.note(origin, number)

    def _handle_back(self, node: bytes, number: int) -> None:
        """A node has a link again. It has missed the confirmations of that time, and has sent none."""
        if node != self._link.node_id:
            self._barrier.node_applied(node, number)
            self._applied.note(node, self._changes.last)

    def _handle_pushed(self, messages: list[bytes], items: list[list[Any]]) -> None:
        """Another node has put messages into the queues of sessions whose clients are here."""
        for client_id, first, *places in items:
            session = self._plane.sessions.get(client_id)
            if session is not None and session.kind == SessionKind.SHARED:
                for number, place in enumerate(places, first):
                    arrive(session, number, messages[place - 1])
