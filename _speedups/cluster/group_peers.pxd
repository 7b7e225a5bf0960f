# The subscribers of a shared subscription at other nodes. See group_peers.pyx.

cimport cython
from libc.stdint cimport int64_t, uint32_t

from .peer cimport Peer


cdef class PeerSubscribers:
    cdef Peer peer
    cdef int qos                   # highest of its subscribers
    cdef int64_t weight            # how many are connected, as the node has announced it
    cdef int64_t credit            # see `next_node`


@cython.final
cdef class GroupPeers:
    cdef list items                # PeerSubscribers
    cdef bytes node                # id of this node
    cdef int64_t credit            # of the subscribers here

    cdef bint set(self, Peer peer, int announced) except -1
    cdef int highest_qos(self) except -2
    cdef Peer next_node(self, int64_t here)
    cdef Peer node_of(self, uint32_t hash, bint here)
