"""The receivers of messages for sessions at other nodes, and for these nodes: a delivery plan has Subscribers.

A record of the table has no object. When a plan has it, a Session stands for it, and goes some seconds after the last
plan with it. A block under way may have the Session, and the reply to it adds messages there. So a client that connects
here gets the Session that stands for its record, until all these blocks are stored.
"""

from libc.stdint cimport uint32_t, uint64_t

from ..session.session cimport Session
from ..session.subscriber cimport Subscriber
from ..session.turn cimport Turn
from .foreign cimport ROUTE, ForeignTable, Match


cdef class ForeignReceivers:
    """The receivers for one table, which is empty.

    Args:
        turn: of this node.
    """

    def __init__(self, Turn turn not None):
        self.turn = turn
        self.table = ForeignTable()
        self.nodes = []
        self.leaving = []
        self.current = {}
        self.retiring = {}

    cdef Subscriber receiver_of(self, const Match* match):
        """The receiver for a match of the table; plans may have it until `retire` is called."""
        if match.options & ROUTE:
            return self.nodes[match.holder]
        return self.stand_in(self.table.client_id_at(match.holder), self.table.incarnation_at(match.holder))

    cdef Session stand_in(self, bytes client_id, uint64_t incarnation):
        """The Session that stands for a record, made if there is none."""
        cdef Session session = self.current.get(client_id)
        if session is None:
            session = self.retiring.pop(client_id, None)
        if session is None or session.session_id != incarnation:
            session = Session(self.turn, incarnation, client_id, persistent=True, shared=True)
        self.current[client_id] = session
        return session

    def take(self, bytes client_id not None, uint64_t incarnation):
        """The Session that stands for a record, made if there is none; the caller has it from now on."""
        cdef Session session = self.stand_in(client_id, incarnation)
        del self.current[client_id]
        return session

    def give(self, Session session not None):
        """Let a Session stand for its record."""
        self.current[session.client_id] = session

    @property
    def standing(self):
        """The number of Sessions that stand for records."""
        return len(self.current)

    cdef bint may_retire(self) noexcept:
        """Whether there are Sessions to retire, and the earlier ones have gone."""
        return len(self.current) > 0 and not self.retiring

    cdef object retire(self):
        """Let the present Sessions go, which no plan has: returns a function that lets go of them."""
        self.retiring, self.current = self.current, {}
        return self.retiring.clear

    # ---- nodes ----

    def add_node(self, Subscriber node not None):
        """Give another node a number in the table, as its `session_id`."""
        if None not in self.nodes:
            self.nodes.append(None)
        node.session_id = self.nodes.index(None)
        self.nodes[node.session_id] = node

    def end_node(self, uint32_t number):
        """The node with this number has left: its routes match nothing from now on, and `sweep` removes them."""
        self.table.end_node(number)
        self.leaving.append(number)

    cdef bint sweep(self) except -1:
        """Remove the routes of nodes that have left from one segment of the table. False: there are none."""
        if self.table.remove_ended():
            return True
        for number in self.leaving:
            self.nodes[number] = None
        self.leaving.clear()
        return False
