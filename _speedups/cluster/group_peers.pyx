"""The subscribers of a shared subscription at other nodes: how many, and which node gives the next message of QoS 0."""

cimport cython
from libc.stdint cimport int64_t, uint32_t

from .peer cimport Peer
from ..base.name_hash cimport hash_of

cdef enum:
    MAXIMUM_QOS = 3            # of the announcement of a node ...
    QOS_BITS = 2               # ... the number of its subscribers is above ...
    EXACT_SUBSCRIBERS = 8          # ... itself, up to this one


cdef class PeerSubscribers:
    """The subscribers of a group at another node."""


@cython.final
cdef class GroupPeers:
    """No other node has subscribers.

    Args:
        node: id of this node.
    """

    def __init__(self, bytes node):
        self.node = node
        self.items = []

    cdef bint set(self, Peer peer, int announced) except -1:
        """A node has subscribers, with this QoS and number as `Routes` announces them; -1: it has none.

        Returns whether it had some.
        """
        cdef PeerSubscribers there
        for there in self.items:
            if there.peer is peer:
                if announced < 0:
                    self.items.remove(there)
                else:
                    set_subscribers(there, announced)
                return True
        if announced >= 0:
            there = PeerSubscribers()
            there.peer = peer
            self.items.append(there)
            set_subscribers(there, announced)
        return False

    cdef int highest_qos(self) except -2:
        """The highest QoS of all these subscribers; -1: there are none."""
        cdef PeerSubscribers there
        cdef int highest = -1
        for there in self.items:
            highest = max(highest, there.qos)
        return highest

    cdef Peer next_node(self, int64_t here):
        """The node that gives the next message of QoS 0; None: this one, which has `here` connected subscribers.

        Smooth rotation by weight: each gets its weight as credit, and the subscriber with the most credit pays for the
        turn of all.
        """
        cdef int64_t total = here
        cdef PeerSubscribers there, chosen = None
        self.credit += here
        for there in self.items:
            there.credit += there.weight
            total += there.weight
            if chosen is None or there.credit > chosen.credit:
                chosen = there
        if chosen is None or here and self.credit >= chosen.credit:
            self.credit -= total
            return None
        chosen.credit -= total
        return chosen.peer

    cdef Peer node_of(self, uint32_t hash, bint here):
        """The node that gives messages of QoS 0 with a key; None: this one. All nodes find the same.

        `here`: a subscriber here is connected.
        """
        cdef PeerSubscribers there
        cdef Peer chosen = None
        cdef uint32_t score, highest = weight_of(hash, self.node) if here else 0
        for there in self.items:
            score = weight_of(hash, there.peer.client_id)
            if score > highest:
                highest, chosen = score, there.peer
        return chosen


cdef int set_subscribers(PeerSubscribers there, int announced) except -1:
    there.qos = announced & MAXIMUM_QOS
    there.weight = announced >> QOS_BITS
    if there.weight > EXACT_SUBSCRIBERS:
        there.weight = <int64_t>1 << (there.weight - 5)      # powers of two follow, from 16
    return 0


cdef uint32_t weight_of(uint32_t hash, bytes name) noexcept:
    """The weight of a node for a key; the node with the highest gets its messages of QoS 0."""
    cdef uint32_t h = (hash ^ hash_of(name, len(name))) * 2654435761U
    return h ^ h >> 15
