"""Replicated state: every node applies each change, in the order Redis assigns.

A change is a list of records. A record is an array, its kind first; `CHANGES` (cluster/redis/calls.py) has the fields:

==============  ====================================================================================================
subscribed      a persistent session has a subscription
unsubscribed    a persistent session has it no more
ended           a persistent session has ended
route           the origin has clients for a topic filter (routes.py)
unroute         the origin has no clients for it any more
retained        the retained message of a topic name has changed; an empty one is cleared
outdated        in the stream, in place of `retained`: the message is to be read from Redis
ready           a node has joined
left            a node has left, or was declared dead
expired         a retained message has expired; for Redis only, nodes drop it by themselves
joined          a session or a node of another shard is a member of a group of this one; for Redis only
parted          it is no member any more; likewise
group           a shared subscription is declared, or is it no more: the settings are empty
mark            a random number, the last record of a change
==============  ====================================================================================================
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

from ..._speedups.cluster.journal import ClusterJournal
from ..._speedups.cluster.message_codec import decode_message
from ..._speedups.session.subscriber import SessionKind
from ...broker.core.data_plane import DataPlane
from ...broker.core.group_settings import settings_of
from ..peers.members import Members
from .group_memberships import GroupMemberships
from .routes import options_of, stored_options


class NodesListener(Protocol):
    """Is called for changes of the nodes."""

    def joined(self, node: bytes, change: int) -> None:
        """Another node has joined, with the change of this number."""

    def left(self, node: bytes) -> None:
        """A node has left, or was declared dead; it may be this one."""


class Changes:
    """Applies changes to the state of this node.

    Args:
        plane: of this node.
        members: the other nodes.
        node_id: of this node.
        journal: of this node.
        memberships: of this node.
    """

    _nodes: NodesListener

    def __init__(
        self,
        plane: DataPlane,
        members: Members,
        node_id: bytes,
        journal: ClusterJournal,
        memberships: GroupMemberships | None = None,
        on_retained: Callable[[bytes], object] = lambda topic: None,
    ) -> None:
        self._memberships = memberships or GroupMemberships(None)
        self._on_retained = on_retained
        self._plane = plane
        self._journal = journal
        self._members = members
        self._node_id = node_id
        kinds: dict[str, Callable[..., object]] = {
            "subscribed": self.apply_subscribed,
            "unsubscribed": self._apply_unsubscribed,
            "ended": self._apply_ended,
            "retained": self.apply_retained,
            "outdated": self.note_outdated,
            "left": self._apply_left,
            "group": self.apply_group,
        }
        self._kinds: dict[str | bytes, Callable[..., object]] = {}  # records that were read from Redis have bytes
        for kind, apply in kinds.items():
            self._kinds[kind] = self._kinds[kind.encode()] = apply
        self._missing: dict[bytes, None] = {}  # topic names, in the order in which they are read
        self.last = 0  # number of the last applied change ...
        self.mark = 0  # ... and its mark: after a failover that lost it, another change may have the number; 0 = none

    def attach(self, nodes: NodesListener) -> None:
        """Connect the receiver of changes of the nodes."""
        self._nodes = nodes

    def apply(self, number: int, origin: bytes, records: list[Any]) -> None:
        """Apply the records of a change."""
        for kind, *fields in records:
            apply = self._kinds.get(kind)
            if apply is not None:
                apply(*fields)
            elif kind in (b"route", "route"):
                self._apply_route(origin, *fields)
            elif kind in (b"unroute", "unroute"):
                self._apply_unroute(origin, *fields)
            elif kind in (b"ready", "ready") and fields[0] != self._node_id:
                self._nodes.joined(fields[0], number)
        if number >= self.last:
            self.last, self.mark = number, mark_of(records)

    def apply_subscribed(
        self, client_id: bytes, incarnation: int, topic_filter: bytes, options: int, identifier: int, elsewhere: int = 0
    ) -> None:
        """A persistent session has a subscription."""
        sessions, router = self._plane.sessions, self._plane.router
        session = sessions.get(client_id)
        if session is not None and session.session_id != incarnation:
            if session.owner is not None or session.session_id > incarnation:
                return  # late, of an earlier incarnation
            sessions.end(session)
            session = None
        if session is None:
            if router.foreign.subscribe(client_id, incarnation, topic_filter, options, identifier):
                return
            session = sessions.share(client_id, incarnation)
        router.filters.subscribe(session, topic_filter, options, identifier)

    def apply_sessions(self, sessions: list[Any]) -> None:
        """The subscriptions of persistent sessions, as `ForeignSessions.load` has them."""
        for fields in self._plane.router.foreign.load(sessions, self._plane.sessions.here):
            self.apply_subscribed(*fields)

    def _apply_unsubscribed(self, client_id: bytes, incarnation: int, topic_filter: bytes, elsewhere: int = 0) -> None:
        session = self._plane.sessions.get(client_id)
        if session is None:
            self._plane.router.foreign.unsubscribe(client_id, incarnation, topic_filter)
        elif session.session_id == incarnation:
            self._plane.router.filters.unsubscribe(session, topic_filter)
            if not session.subscriptions_held and session.owner is None and not session.loading:
                self._plane.sessions.end(session)

    def _apply_ended(self, client_id: bytes, incarnation: int) -> None:
        sessions = self._plane.sessions
        sessions.shared_ended(client_id)
        sessions.end_record(client_id, incarnation)
        session = sessions.get(client_id)
        if session is None or session.kind != SessionKind.SHARED or session.session_id != incarnation:
            return
        for name, _, _ in self._plane.router.filters.all_of(session) if self._memberships.divided else ():
            self._memberships.session_ended(self._journal, name, client_id)
        if session.owner is None:
            sessions.end(session)
        else:  # another connection has claimed it while this node had no link: `Reclaim` closes this one
            sessions.end_with_connection(session)

    def _apply_route(self, node: bytes, topic_filter: bytes, *route: int) -> None:
        """A node has clients for a topic filter; `route`: as `options_of` has it."""
        member = self._members.get(node)
        if member is not None:
            self._plane.router.foreign.route(member.peer, topic_filter, options_of(*route[:4]))

    def apply_routes(self, node: bytes, routes: list[bytes]) -> None:
        """A node has clients for many topic filters: each with its route as Redis has it."""
        member = self._members.get(node)
        if member is not None:
            self._plane.router.foreign.load_routes(member.peer, routes, stored_options)

    def _apply_unroute(self, node: bytes, topic_filter: bytes, elsewhere: int = 0) -> None:
        """A node has no clients for a topic filter any more."""
        member = self._members.get(node)
        if member is not None:
            self._plane.router.foreign.unroute(member.peer, topic_filter)

    def _apply_left(self, node: bytes) -> None:
        self._nodes.left(node)

    def apply_group(self, name: bytes, settings: bytes) -> None:
        """A shared subscription is declared, or is it no more."""
        filters, turn = self._plane.router.filters, self._plane.turn
        if settings:
            filters.declare(turn, name, settings_of(settings, turn.shared))
        else:
            filters.undeclare(name)

    def note_outdated(self, topic: bytes) -> None:
        """The retained message of a topic name has changed, and is yet to be read from Redis."""
        self._missing[topic] = None

    def apply_retained(self, topic: bytes, message: bytes) -> None:
        """The retained message of a topic name has changed; empty = there is none."""
        self._missing.pop(topic, None)
        if not message:
            self._plane.router.retained.set(topic, b"")
        else:
            _, payload, qos, _, properties, deadline = decode_message(message)
            expires = self._journal.clock_of(deadline)
            self._plane.router.retained.set(topic, payload, qos, properties=properties, expires=expires)
        self._on_retained(topic)

    def missing(self, most: int) -> list[bytes]:
        """Up to `most` topic names whose retained messages are yet to be read from Redis."""
        return list(islice(self._missing, most))


def mark_of(records: list[Any]) -> int:
    """The mark of a change; 0 = it has none."""
    kind, *fields = records[-1]
    return int(fields[0]) if kind in (b"mark", "mark") else 0
