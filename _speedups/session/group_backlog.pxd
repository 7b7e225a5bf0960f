# The messages of a shared subscription that no subscriber has, by its settings. See group_backlog.pyx.

cimport cython
from libc.stdint cimport uint64_t

from .group_backing cimport GroupBacking
from .group_failures cimport Failures
from .group_keys cimport KeyTable
from .group_queue cimport Waiting, WaitingQueue
from .group_rotation cimport Rotation
from .shared_subscription cimport SessionGroup
from .message cimport Message


@cython.final
cdef class Backlog:
    cdef SessionGroup group        # None: it has ended
    cdef Rotation rotation
    cdef WaitingQueue queue
    cdef KeyTable keys             # also of the queue; None: no order by key
    cdef Failures failures
    cdef GroupBacking backing
    cdef uint64_t returned         # messages that came back so far

    cdef int trace(self, str step, const Message* message, str detail) except -1
    cdef Message* lower_expiry(self, Message* message) except NULL
    cdef int wait(self, uint64_t place, Message* message, bint recorded) except -1
    cdef int keep_waiting(self, uint64_t place, Message* message) except -1
    cdef int restore(self, uint64_t place, Message* message) except -1
    cdef bint supersede(self, uint64_t place, Message* message, bint is_new) except -1
    cdef int come_back(self, uint64_t place, Message* message) except -1
    cdef int take_dead(self, uint64_t place, Message* message) except -1
    cdef int publish_dead(self) except -1
    cdef int recall(self) except -1
    cdef int purge(self) except -1
    cdef bint drop_oldest(self) except -1
    cdef bint drop_expired(self) except -1
    cdef int expire(self, Waiting expired) except -1
    cdef int discard(self, Waiting dropped, str reason) except -1
    cdef int set_order(self) except -1
    cdef int key_done(self, uint64_t place) except -1
    cdef int forget_key(self, uint64_t place) except -1
