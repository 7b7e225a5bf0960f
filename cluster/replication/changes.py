"""What all nodes must know alike: every change, in the one order that Redis gives them.

A change is an array, its kind first:

==============  ====================================================================================================
subscribed      client id, incarnation, topic filter, options: of a persistent session
unsubscribed    client id, incarnation, topic filter
ended           client id, incarnation: a persistent session is gone
route           topic filter, QoS: the node that says so has clients for it
unroute         topic filter
retained        topic name, message; empty = cleared; without it: look it up
ready           node: it takes part from now on
left            node: it is dead, or has gone
==============  ====================================================================================================
"""

from collections.abc import Callable
from typing import Any

from _speedups.cluster.journal import decode_message
from broker.core.data_plane import DataPlane
from cluster.peers.members import Members


class Changes:
    """Applies changes to what this node knows.

    Args:
        data_plane: of this node.
        members: the nodes that take part.
        me: this node's id.
        ready: called with a node that takes part from now on.
        left: called with a node that has gone.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        members: Members,
        me: bytes,
        ready: Callable[[bytes, int], object],
        left: Callable[[bytes], object],
    ) -> None:
        self._data_plane = data_plane
        self._members = members
        self._me = me
        self._ready = ready
        self._left = left
        self._missing: list[bytes] = []
        self.last = 0  # number of the last one that was applied

    def apply(self, number: int, origin: bytes, records: list[Any]) -> None:
        """Apply the records of a change."""
        filters = self._data_plane.router.filters
        for kind, *fields in records:
            name = kind if isinstance(kind, str) else kind.decode()
            if name == "subscribed":
                self.subscribed(*fields)
            elif name == "unsubscribed":
                client_id, incarnation, topic_filter = fields
                session = self._data_plane.sessions.get(client_id)
                if session is not None and session.number == incarnation:
                    filters.unsubscribe(session, topic_filter)
                    if not session.subscriptions_held and session.owner is None and not session.loading:
                        self._data_plane.sessions.end(session)
            elif name == "ended":
                client_id, incarnation = fields
                session = self._data_plane.sessions.get(client_id)
                if session is not None and session.kind and session.number == incarnation and session.owner is None:
                    self._data_plane.sessions.end(session)
            elif name == "route":
                self.route(origin, *fields)
            elif name == "unroute":
                member = self._members.get(origin)
                if member is not None:
                    filters.unsubscribe(member.peer, fields[0])
            elif name == "retained":
                self.retained(*fields)
            elif name == "ready":
                if fields[0] != self._me:
                    self._ready(fields[0], number)
            elif name == "left":
                self._left(fields[0])
        self.last = max(self.last, number)

    def subscribed(self, client_id: bytes, incarnation: int, topic_filter: bytes, options: int) -> None:
        """A persistent session has a subscription."""
        sessions = self._data_plane.sessions
        session = sessions.get(client_id)
        if session is not None and session.number != incarnation:
            if session.owner is not None or session.number > incarnation:
                return  # told late, of an earlier life
            sessions.end(session)
            session = None
        if session is None:
            session = sessions.share(client_id, incarnation)
        self._data_plane.router.filters.subscribe(session, topic_filter, options)

    def route(self, node: bytes, topic_filter: bytes, qos: int) -> None:
        """A node has clients for a topic filter."""
        member = self._members.get(node)
        if member is not None:
            self._data_plane.router.filters.subscribe(member.peer, topic_filter, qos)

    def retained(self, topic: bytes, message: bytes | None = None) -> None:
        """The retained message of a topic name is another one."""
        if message is None:
            self._missing.append(topic)
        elif not message:
            self._data_plane.router.retained.set(topic, b"")
        else:
            _, payload, qos, _ = decode_message(message)
            self._data_plane.router.retained.set(topic, payload, qos)

    def take_missing(self) -> list[bytes]:
        """Topic names whose retained messages are to be looked up."""
        missing, self._missing = self._missing, []
        return missing
