# The part of a shared subscription that this node has: its members here, and the messages leased to it. See group.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from _speedups.cluster.journal cimport ClusterJournal
from _speedups.session.group cimport Group
from _speedups.session.message cimport Message
from _speedups.session.subscriber cimport Subscriber


cdef class PeerMembers:
    cdef Subscriber peer
    cdef int qos                   # highest of its members
    cdef int64_t weight            # how many are connected, as the node has announced it
    cdef int64_t credit            # see `pass_on`


cdef class ClusterGroup(Group):
    cdef ClusterJournal journal
    cdef set leases                # places of messages that Redis has leased to this node, and that it has
    cdef list peers                # PeerMembers: of other nodes
    cdef uint64_t room_known       # messages that Redis may lease to this node, as far as this node knows
    cdef uint64_t total            # leases to this node, as Redis has counted those that have arrived
    cdef int64_t credit            # of the members here: see `pass_on`
    cdef int64_t aside_since       # time of the turn's clock at which a message was put aside; 0 = none is

    cdef int set_members(self, PeerMembers there, int announced) except -1
    cdef uint64_t room(self) except? 0
    cdef int end_lease(self, uint64_t place, Message* message) except -1
    cdef tuple failures_of(self, uint64_t place)
    cdef int announce(self) except -1
    cdef int give_to_others(self) except -1
    cdef int take_lease(self, uint64_t place, Message* message) except -1
