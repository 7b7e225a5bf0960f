# Another node, as a subscriber. See peer.pyx.

from _speedups.session cimport Session
from _speedups.turn cimport Outlet


cdef class PeerOutlet(Outlet):
    cdef object send                   # callable that takes a batch


cdef class Peer(Session):
    pass
