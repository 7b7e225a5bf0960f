# The members of a shared subscription. See group_members.pyx.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from .group_queue cimport GroupQueue
from .group_settings cimport GroupSettings
from .membership cimport Membership
from .message cimport Message, Publication
from .outgoing_queue cimport Entry
from .session cimport Session

cdef enum:
    MAXIMUM_QOS = 3                # of the options of a subscription


@cython.final
cdef class Member(Membership):
    cdef readonly GroupMembers group   # None: it has left
    cdef readonly Session session
    cdef bint listed               # in GroupMembers.connected
    # For groups of a cluster, see `ClusterGroup.is_direct`:
    cdef uint32_t room_known       # messages that Redis may put into the session's queue, as far as this node knows
    cdef int64_t total             # those that it has put there; -1 = Redis is yet to be asked
    cdef uint32_t steady           # it has room while its session's queue is shorter; 0 = see `room_known`
    cdef uint64_t rights_number    # of the rights for which `reads_all` was determined; 0 = none
    cdef bint reads_all            # the client may read whatever the topic filter matches
    cdef void* before              # Members of the ring of those with room ...
    cdef void* after               # ... not owned

    cdef uint32_t room(self) noexcept
    cdef uint32_t whole_room(self) noexcept
    cdef bint may_take(self, const Message* message) except -1
    cdef int returned(self, uint64_t place, Message* message, uint8_t qos) except -1


cdef class GroupMembers(GroupQueue):
    cdef readonly list members     # in the order of joining
    cdef list connected            # those with a connection, in that order ...
    cdef Py_ssize_t turn_of        # ... and the next of them to get a message of QoS 0
    cdef void* first_ready         # a ring of Members with room; NULL = none has
    cdef readonly bint kept        # it is declared or has a persistent member, so its state is written to the journal

    cdef int highest_qos(self) except -1
    cdef bint has_persistent(self) noexcept
    cdef int join(self, Member member) except -1
    cdef int leave(self, Member member, bint session_ends) except -1
    cdef int unlist(self, Member member) except -1
    cdef Member choose(self, const Publication* publication)
    cdef int make_ready(self, Member member) except -1
    cdef int make_unready(self, Member member) except -1
    cdef int room_changed(self) except -1
    cdef int member_done(self, Member member, uint64_t place) except -1
    cdef int hold_keys(self, Member member) except -1
    cdef int hold_key(self, uint64_t place) except -1
    cdef int note_key_of(self, Member member, uint64_t place, uint32_t hash, uint64_t failures) except -1
    cdef bint someone_takes(self, const Message* message) except -1
    cdef int take_back(self, uint64_t place, Message* message, bint record) except -1
    cdef int take_refused(self, Member member, uint64_t n, uint8_t code) except -1
    cdef int come_back(self, uint64_t place, Message* message) except -1
    cdef int record_key(self, uint64_t place) except -1
    cdef int keep(self) except -1
    cdef int stop_keeping(self, bint records) except -1


cdef uint32_t key_of(GroupSettings settings, const Publication* publication) except? 0
cdef list entries_of(Member member)
cdef Message* take_entry(Session session, uint64_t n, Entry* e) except NULL
cdef int give_back(Session session, uint64_t n, Entry* e, uint8_t code=*) except -1
cdef int give_back_unsent(Member member) except -1
cdef int note_given(Session session, uint64_t n, bytes name, uint64_t place, object counted_by, int64_t key=*,
                    uint64_t failures=*) except -1
cdef int forget_given(Member member, uint64_t place) except -1
