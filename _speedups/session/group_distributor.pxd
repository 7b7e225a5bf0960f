# Gives each message of a shared subscription to one subscriber. See group_distributor.pyx.

cimport cython
from libc.stdint cimport uint8_t, uint64_t

from .group_backlog cimport Backlog
from .group_keys cimport Key
from .group_subscriber cimport GroupSubscriber
from .group_queue cimport Held, Waiting
from .group_rotation cimport Rotation
from .shared_subscription cimport SessionGroup
from .message cimport Message, Publication

cdef enum:
    GIVEN_TO_ONE = 1           # results of `give_keyed`: a subscriber has it ...
    NO_ROOM = 2                # ... it waits until its subscriber, or any, has room ...
    NOT_TAKEN = 3              # ... no subscriber with room may take it now


@cython.final
cdef class Distributor:
    cdef SessionGroup group        # None: it has ended
    cdef list subscribers              # the list of the group
    cdef Rotation rotation
    cdef Backlog backlog
    cdef uint64_t given            # messages so far

    cdef int give_new(self, uint64_t place, const Publication* publication, Message* message) except -1
    cdef bint give(self, uint64_t place, Message* message, bint recorded) except -1
    cdef bint give_next(self, uint64_t place, Message* message, bint recorded, bytes excluded) except -1
    cdef int hand(self, GroupSubscriber subscriber, uint64_t place, Message* message, bint recorded) except -1
    cdef int give_waiting(self) except -1
    cdef int put_aside(self, Waiting taken) except -1
    cdef bint someone_takes(self, const Message* message) except -1
    cdef bint has_others(self) except -1
    cdef bint is_empty(self) except -1
    cdef int give_keyed(self, Key key, uint64_t place, Message* message, bint recorded) except -1
    cdef bint send_keyed(self, Key key, Waiting taken) except -1
    cdef int send_all_keyed(self) except -1


cdef class Begun(Held):
    cdef Distributor distributor         # of the group, which the subscriber may have left
    cdef GroupSubscriber subscriber
    cdef uint8_t flags
