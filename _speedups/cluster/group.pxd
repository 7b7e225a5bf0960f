# The part of a shared subscription that this node has: its members here, and the messages leased to it. See group.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from .journal cimport ClusterJournal
from ..session.group cimport Group
from ..session.group_keys cimport Key
from ..session.group_members cimport Member
from ..session.message cimport Message
from ..session.subscriber cimport Subscriber


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
    cdef uint64_t largest_known    # bytes of the largest packet of members here, as Redis knows it
    cdef uint64_t total            # leases to this node, as Redis has counted those that have arrived
    cdef int64_t credit            # of the members here: see `pass_on`
    cdef int64_t aside_since       # time of the turn's clock at which a message was put aside; 0 = none is
    cdef dict entrusted            # place -> Member: messages with keys that are in queues of persistent sessions
    cdef dict held                 # hash -> Key: those that are held for a session that is elsewhere
    cdef uint64_t holds            # how often a key was held
    cdef int64_t check_at          # time of the turn's clock at which Redis is asked about `held` ...
    cdef int64_t check_every       # ... and how long it waits then, in ticks
    cdef bint suspended            # leases may be missing: no message with a key is given

    cdef int set_members(self, PeerMembers there, int announced) except -1
    cdef int end_lease(self, uint64_t place, Message* message) except -1
    cdef tuple failures_of(self, uint64_t place)
    cdef bytes heads_of(self, uint64_t place)
    cdef bint is_mine(self, uint64_t place) except -1
    cdef int take_keyed(self, Key key, uint64_t place, Message* message) except -1
    cdef int end_key(self, Key key, uint64_t place) except -1
    cdef PeerMembers node_of(self, uint32_t hash)
    cdef int hold(self, Key key) except -1
    cdef int close(self, Key key) except -1
    cdef int close_all(self) except -1
    cdef bint is_direct(self, Member member) except -1
    cdef int announce(self) except -1
    cdef uint64_t largest_of(self, Member member) noexcept
    cdef int announce_member(self, Member member) except -1
    cdef int announce_limit(self, Member member, uint64_t limit, bint by_length) except -1
    cdef int note_given(self, Member member, uint64_t total, uint32_t count) except -1
    cdef int give_to_others(self) except -1
