# Another node, as a subscriber. See peer.pyx.

from libc.stdint cimport uint64_t

from ..session.message cimport Publication
from ..session.subscriber cimport Subscriber
from ..session.turn cimport Outlet

# How messages of QoS 1 and 2 go to another node: the QoS of its subscription. The highest counts if several match.
cpdef enum Way:
    IN_QUEUES = 0              # all sessions that get them there have queues in Redis
    AT_MOST_ONCE = 1           # as messages of QoS 0, beside the queues
    LOGGED = 2                 # by the log of batches, which the other node follows


cdef class PeerOutlet(Outlet):
    cdef object send                   # callable that takes a batch
    cdef uint64_t messages             # of the next batch


cdef class Peer(Subscriber):
    cdef int accept_for(self, Publication* publication, bytes group) except -1
    cdef int send_qos_0(self, Publication* publication, bytes group) except -1
