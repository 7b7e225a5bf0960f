# Another node, as a subscriber. See peer.pyx.

from _speedups.session.subscriber cimport Subscriber
from _speedups.session.turn cimport Outlet


cdef class PeerOutlet(Outlet):
    cdef object send                   # callable that takes a batch


cdef class Peer(Subscriber):
    pass
