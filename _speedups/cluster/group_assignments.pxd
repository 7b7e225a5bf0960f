# The messages of a shared subscription that Redis has assigned to this node. See group_assignments.pyx.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from .group_peers cimport GroupPeers
from .group_room cimport AnnouncedRoom
from .journal cimport ClusterJournal
from .group_records cimport GroupRecords
from .assigned_keys cimport AssignedKeys
from ..session.group cimport Group
from ..session.group_backing cimport GroupBacking
from ..session.group_keys cimport Key
from ..session.group_subscriber cimport GroupSubscriber
from ..session.message cimport Message


cdef class GroupAssignments(GroupBacking):
    cdef readonly Group group
    cdef ClusterJournal journal
    cdef GroupRecords records
    cdef readonly set places       # of messages that Redis has assigned to this node, and that it has
    cdef GroupPeers peers
    cdef AnnouncedRoom room
    cdef AssignedKeys keys
    cdef int64_t aside_since       # time of the turn's clock at which a message was put aside; 0 = none is

    cdef int take(self, uint64_t place, Message* message, int64_t key, uint64_t number, bint elsewhere) except -1
    cdef int take_keyed(self, Key key, uint64_t place, Message* message) except -1
    cdef int end_assignment(self, uint64_t place, Message* message) except -1
    cdef int give_to_others(self) except -1
    cdef int hand_over(self, GroupSubscriber subscriber, uint64_t place, Message* message, uint8_t flags) except -1
    cdef bytes heads_of(self, uint64_t place)
