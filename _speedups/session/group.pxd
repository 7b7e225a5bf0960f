# A shared subscription: a group of sessions, of which each message goes to one. See group.pyx.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from .group_backing cimport GroupBacking
from .group_failures cimport Failures
from .group_keys cimport Key, KeyTable
from .group_members cimport Member
from .group_queue cimport Held, Waiting, WaitingQueue
from .group_rotation cimport Rotation
from .membership cimport SessionGroup
from .message cimport Message, Publication
from .outgoing_queue cimport Entry
from .session cimport Session

cdef enum:
    GIVEN_TO_ONE = 1           # results of `give_keyed`: a member has it ...
    NO_ROOM = 2                # ... it waits until its member, or any, has room ...
    NOT_TAKEN = 3              # ... no member with room may take it now


cdef class Group(SessionGroup):
    cdef readonly bytes topic_filter
    cdef readonly GroupBacking backing
    cdef readonly list members     # in the order of joining
    cdef WaitingQueue queue
    cdef KeyTable keys             # also of the queue; None: no order by key
    cdef Rotation rotation
    cdef Failures failures
    cdef readonly uint64_t given, returned    # so far
    cdef bint ended

    cdef bint is_empty(self) except -1
    cdef bint has_others(self) except -1
    cdef bint has_persistent(self) noexcept
    cdef int join(self, Member member) except -1
    cdef int leave(self, Member member, bint session_ends) except -1
    cdef int end(self) except -1
    cdef int options_changed(self, Member member) except -1
    cdef int make_ready(self, Member member) except -1
    # Messages that arrive, and that wait.
    cdef bint pass_on(self, Publication* publication) except -1
    cdef Member choose(self, const Publication* publication)
    cdef int place(self, uint64_t place, const Publication* publication, Message* message) except -1
    cdef Message* lower_expiry(self, Message* message) except NULL
    cdef int restore(self, uint64_t place, Message* message) except -1
    cdef int wait(self, uint64_t place, Message* message, bint recorded) except -1
    cdef int keep_waiting(self, uint64_t place, Message* message) except -1
    cdef bint supersede(self, uint64_t place, Message* message, bint is_new) except -1
    cdef int recall(self) except -1
    cpdef int purge(self) except -1
    cdef bint drop_oldest(self) except -1
    cdef bint drop_expired(self) except -1
    cdef int expire(self, Waiting expired) except -1
    cdef int discard(self, Waiting dropped, str reason) except -1
    # Messages that members have.
    cdef int take_unsent(self, Member member) except -1
    cdef int release_entry(self, Member member, uint64_t n, Entry* e) except -1
    cdef int come_back(self, uint64_t place, Message* message) except -1
    cdef int member_done(self, Member member, uint64_t place) except -1
    cdef int take_dead(self, uint64_t place, Message* message) except -1
    cdef int publish_dead(self) except -1
    # Giving.
    cdef bint give(self, uint64_t place, Message* message, bint recorded) except -1
    cdef int hand(self, Member member, uint64_t place, Message* message, bint recorded) except -1
    cdef int give_waiting(self) except -1
    cdef int put_aside(self, Waiting taken) except -1
    cdef bint someone_takes(self, const Message* message) except -1
    # Order by key.
    cdef int set_strategy(self) except -1
    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1
    cdef bint send_keyed(self, Key key, Waiting taken) except -1
    cdef int send_all_keyed(self) except -1
    cdef int key_done(self, uint64_t place) except -1
    cdef int forget_key(self, uint64_t place) except -1


cdef class Begun(Held):
    cdef Group group               # as it was given: the member may have left it
    cdef Member member
    cdef uint8_t flags


cdef int give_back(Session session, uint64_t n, Entry* e, uint8_t code=*) except -1
