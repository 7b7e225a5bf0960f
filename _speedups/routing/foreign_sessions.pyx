"""Persistent sessions at other nodes, and routes of these nodes: changes, and moves between the table and the tree.

A session is a record of the ForeignTable, if all its subscriptions are plain: not shared, without identifier, without
No Local. Any other one is a Session, as are the sessions of this node's clients, and its subscriptions are in the tree.
A session moves when its client connects here, and when that connection has ended. Delivery plans are made of both.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..base.arena cimport Ref
from ..base.segments cimport fetch, text_hash
from ..codec.topics cimport shared_filter_at
from ..session.session cimport Session
from ..session.subscriber cimport Subscriber
from ..session.tenant cimport Tenant
from ..session.turn cimport Turn
from .foreign cimport ForeignTable
from .foreign_receivers cimport ForeignReceivers
from .plans cimport NO_LOCAL
from .subscriptions cimport SLICE, SubscriptionTree

from .foreign import SEGMENTS

cdef enum:
    RECORD_BYTES = 83          # of a subscription, besides its topic filter; about
    ROUTE_BYTES = 30           # of a route; about: it may have its filter alone
    OPTIONS_KEPT = 1000        # pairs of options and identifier that are not parsed again


cdef class ForeignSessions:
    """The foreign sessions and routes of a node.

    Args:
        turn: of the node.
        tree: of the node.
    """

    def __init__(self, Turn turn not None, SubscriptionTree tree not None):
        self.turn = turn
        self.tree = tree
        self.receivers = tree.foreign = ForeignReceivers(turn)
        self.table = self.receivers.table
        self.known_options = {}

    def __len__(self):
        """The number of sessions that are records."""
        return self.table.by_client_id.count

    def __contains__(self, bytes client_id not None):
        return self.table.session_of(client_id) != 0

    # ---- changes ----

    cpdef bint subscribe(self, bytes client_id, uint64_t incarnation, bytes topic_filter, uint8_t options,
                         uint32_t identifier) except -1:
        """A session that is no Session has a subscription.

        Returns:
            False if no record can have the subscription: nothing has changed. A subscription of an earlier incarnation
            is none: True.
        """
        cdef ForeignTable table = self.table
        cdef Py_ssize_t n = len(client_id)
        cdef uint64_t of_client = text_hash(client_id, n, table.seed)
        cdef uint64_t of_filter = text_hash(topic_filter, len(topic_filter), table.seed)
        cdef uint64_t known
        cdef Ref session
        fetch(&table.by_client_id, of_client)
        fetch(&table.by_filter, of_filter)
        session = table.find_session(client_id, n, of_client)
        if session:
            known = table.incarnation_at(session)
            if known > incarnation:
                return True
            if known < incarnation:
                self.end(client_id, known)
                session = 0
        if (identifier or options & NO_LOCAL or not self.fits(topic_filter)
                or (session and table.held_by(session) >= SLICE)):
            return False
        if not session:
            session = table.new_session(client_id, n, of_client, incarnation)
            self.count_sessions(client_id, 1)
        if table.subscribe_session(session, topic_filter, of_filter, options):
            self.count(client_id, topic_filter, 1)
        self.changed(topic_filter)
        return True

    def load(self, list sessions not None, dict here not None):
        """Add the subscriptions of many sessions.

        Args:
            sessions: client id, incarnation, and a list of topic filters, each with `OPTIONS;IDENTIFIER` behind it; in
                turn.
            here: a Session by its client id.

        Returns:
            The subscriptions that are left: client id, incarnation, topic filter, options and identifier.
        """
        cdef list left = [], held
        cdef bytes client_id, topic_filter, stored
        cdef uint64_t incarnation
        cdef uint32_t identifier
        cdef Py_ssize_t at, i
        for at in range(0, len(sessions), 3):
            client_id, incarnation, held = sessions[at], sessions[at + 1], sessions[at + 2]
            for i in range(0, len(held), 2):
                topic_filter, stored = held[i], held[i + 1]
                options, identifier = self.parsed(stored)
                if client_id in here or not self.subscribe(client_id, incarnation, topic_filter, options, identifier):
                    left.append((client_id, incarnation, topic_filter, options, identifier))
        return left

    cdef tuple parsed(self, bytes stored):
        """Options and identifier, as Redis has them. There are few."""
        found = self.known_options.get(stored)
        if found is None:
            found = tuple(map(int, stored.split(b";")))
            if len(self.known_options) < OPTIONS_KEPT:
                self.known_options[stored] = found
        return found

    def unsubscribe(self, bytes client_id not None, uint64_t incarnation, bytes topic_filter not None):
        """A session has a subscription no more; it is no record any more after its last one."""
        cdef ForeignTable table = self.table
        if table.incarnation_of(client_id) != incarnation or not table.unsubscribe(client_id, topic_filter):
            return
        self.count(client_id, topic_filter, -1)
        self.changed(topic_filter)
        if not table.held_by(table.session_of(client_id)):
            self.end(client_id, incarnation)

    def end(self, bytes client_id not None, uint64_t incarnation):
        """A session has ended. False: no record is of this incarnation."""
        cdef ForeignTable table = self.table
        cdef list held
        if table.incarnation_of(client_id) != incarnation:
            return False
        held = table.subscriptions_of(client_id)
        table.remove(client_id)
        self.count_sessions(client_id, -1)
        for topic_filter, _ in held:
            self.count(client_id, topic_filter, -1)
            self.changed(topic_filter)
        return True

    # ---- moves ----

    def come(self, bytes client_id not None, uint64_t incarnation):
        """The client of a session connects here, or it gets a subscription that no record can have.

        Returns:
            Its Session. Its record is gone, and the subscriptions are in the tree.
        """
        cdef list held = []
        cdef Session session
        if self.table.incarnation_of(client_id) == incarnation:
            held = self.table.subscriptions_of(client_id)
            self.end(client_id, incarnation)
        session = self.receivers.take(client_id, incarnation)
        for topic_filter, options in held:
            self.tree.subscribe(session, topic_filter, options)
        return session

    def go(self, Session session not None):
        """The connection of a session has ended here: it becomes a record, and its Session may stand for it.

        Returns:
            False if no record can have its subscriptions: nothing has changed.
        """
        cdef list held = self.tree.all_of(session)
        if len(held) > SLICE:                          # or they would leave the tree in later turns
            return False
        for topic_filter, options, identifier in held:
            if not self.subscribe(session.client_id, session.session_id, topic_filter, options, identifier):
                self.end(session.client_id, session.session_id)
                return False
        self.tree.unsubscribe_all(session)
        self.receivers.give(session)
        return True

    cdef bint fits(self, bytes topic_filter) except -1:
        """Whether a record can have the topic filter."""
        if self.closed or shared_filter_at(topic_filter, len(topic_filter)):
            return False
        return self.table.has_room(topic_filter)

    # ---- routes ----

    cpdef int route(self, Subscriber node, bytes topic_filter, uint8_t options) except -1:
        """A node has clients for a topic filter; the options are as of `SubscriptionTree.subscribe`."""
        if not self.fits(topic_filter) or (node.subscription_count and self.tree.has(node, topic_filter)):
            self.count_routes(-<int>self.table.unroute(node.session_id, topic_filter))
            self.tree.subscribe(node, topic_filter, options)
            return 0
        self.count_routes(self.table.route(node.session_id, topic_filter, options))
        return self.changed(topic_filter)

    def load_routes(self, Subscriber node not None, list routes not None, options_of not None):
        """A node has clients for many topic filters.

        Args:
            routes: topic filter and its route as Redis has it, in turn.
            options_of: the options by such a route, as for `route`.
        """
        cdef Py_ssize_t i
        for i in range(0, len(routes), 2):
            self.route(node, routes[i], options_of(routes[i + 1]))

    def unroute(self, Subscriber node not None, bytes topic_filter not None):
        """A node has no clients for a topic filter any more."""
        if self.table.unroute(node.session_id, topic_filter):
            self.count_routes(-1)
            self.changed(topic_filter)
        else:
            self.tree.unsubscribe(node, topic_filter)

    def node_left(self, Subscriber node not None):
        """A node has left, and its routes with it."""
        self.tree.unsubscribe_all(node)
        self.receivers.end_node(node.session_id)
        self.tree.forget_plans()
        self.tree.changes += 1

    def retire(self):
        """Let Sessions go that stand for records in no plan that is made from now on.

        Returns:
            A function to be called when all records so far are stored; None: there are no such Sessions.
        """
        if not self.receivers.may_retire():
            return None
        self.tree.forget_plans()
        return self.receivers.retire()

    def sweep(self):
        """Remove the routes of nodes that have left from one segment of the table. False: there are none."""
        cdef uint64_t routes = self.table.routes
        cdef bint some_left = self.receivers.sweep()
        self.count_routes(<int64_t>(self.table.routes - routes))
        return some_left

    # ---- the end of the table ----

    def close(self):
        """Let nothing become a record any more."""
        self.closed = True

    def leave(self, share, int most):
        """Move about so many sessions and routes from the closed table to the tree.

        Args:
            share: called with client id and incarnation of each session; it calls `come`.
            most: that are moved.

        Returns:
            Whether all have moved.
        """
        while self.moved < SEGMENTS and most > 0:
            for client_id, incarnation, _ in self.table.sessions_in(self.moved):
                share(client_id, incarnation)
                most -= 1
            for topic_filter, number, options in self.table.routes_in(self.moved):
                self.route(self.receivers.nodes[number], topic_filter, options)
                most -= 1
            self.moved += 1
        return self.moved == SEGMENTS

    # ---- figures ----

    cdef int changed(self, bytes topic_filter) except -1:
        """A holder of a topic filter has changed."""
        self.tree.changes += 1
        return self.tree.forget(topic_filter, len(topic_filter))

    cdef int count_sessions(self, bytes client_id, int n) except -1:
        cdef Tenant tenant = self.turn.tenants.of(client_id, len(client_id))
        if tenant is not None:
            tenant.sessions += n
        return 0

    cdef int count(self, bytes client_id, bytes topic_filter, int n) except -1:
        """Count so many subscriptions more, or with a negative number less."""
        cdef int64_t size = n * (RECORD_BYTES + <int64_t>len(topic_filter))
        cdef Tenant tenant = self.turn.tenants.of(client_id, len(client_id))
        self.tree.count += n
        self.tree.size += size
        if tenant is not None:
            tenant.subscriptions += n
            tenant.subscription_bytes += size
        return 0

    cdef int count_routes(self, int64_t n) noexcept:
        self.tree.size += n * ROUTE_BYTES
        return 0

    # ---- queries ----

    def incarnation_of(self, bytes client_id not None):
        """The incarnation of a session that is a record; None: it is none."""
        return self.table.incarnation_of(client_id)

    def subscriptions_of(self, bytes client_id not None):
        """The topic filters and options of a session that is a record; empty: it is none."""
        return self.table.subscriptions_of(client_id) if self.table.session_of(client_id) else []

    def __iter__(self):
        """Client id, incarnation, topic filters with their options; a session that is there all the time is found."""
        cdef int segment
        for segment in range(SEGMENTS):
            yield from self.table.sessions_in(segment)
