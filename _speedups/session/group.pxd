# A shared subscription: a group of sessions, of which each message goes to one. See group.pyx.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from .group_keys cimport Key
from .group_members cimport Member
from .group_queue cimport Held, Waiting
from .group_store cimport GroupStore
from .message cimport Message, Publication
from .session cimport Session

cdef enum:
    GIVEN_TO_ONE = 1           # results of `give_keyed`: a member has it ...
    NO_ROOM = 2                # ... it waits until its member, or any, has room ...
    NOT_TAKEN = 3              # ... no member with room may take it now


cdef class Group(GroupStore):
    cdef readonly bytes topic_filter
    cdef readonly uint64_t given, returned    # so far

    cdef bint is_empty(self) noexcept
    cdef int take_lease(self, uint64_t place, Message* message, int64_t key, uint64_t number, bint elsewhere) except -1
    cdef bint pass_on(self, Publication* publication) except -1
    cdef int accept_message(self, uint64_t place, const Publication* publication, Message* message) except -1
    cdef bint give(self, uint64_t place, Message* message, bint recorded) except -1
    cdef int hand(self, Member member, uint64_t place, Message* message, bint recorded) except -1
    cdef int put(self, Member member, uint64_t place, Message* message, uint8_t flags) except -1
    cdef int put_aside(self, Waiting taken) except -1
    cdef bint has_others(self) noexcept
    cdef int set_strategy(self) except -1
    cdef int note_key(self, uint64_t place, const Message* message) except -1
    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1
    cdef bint send_keyed(self, Key key, Waiting taken) except -1
    cdef int send_all_keyed(self) except -1
    cdef int publish_dead(self) except -1
    cdef int end_dead(self, uint64_t place) except -1


cdef class Begun(Held):
    cdef Group group               # as it was given: the member may have left it
    cdef Member member
    cdef uint8_t flags

cdef uint64_t put_entry(Session session, Member member, uint64_t place, Message* message, uint8_t flags) except 0
