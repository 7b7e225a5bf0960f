# Another node, as a subscriber. See peer.pyx.

from _speedups.session.message cimport Publication
from _speedups.session.subscriber cimport Subscriber
from _speedups.session.turn cimport Outlet


cdef class PeerOutlet(Outlet):
    cdef object send                   # callable that takes a batch


cdef class Peer(Subscriber):
    cdef int accept_for(self, Publication* publication, bytes group) except -1
    cdef int send_qos_0(self, Publication* publication, bytes group) except -1
