# The messages of a shared subscription that no subscriber has. See group_queue.pyx.

cimport cython
from libc.stdint cimport int64_t, uint64_t

from .group_keys cimport Key, KeyTable
from .group_settings cimport GroupSettings
from .message cimport Message
from .tenant cimport Tenant
from .turn cimport Turn

cdef struct Waiting:
    uint64_t place
    Message* message               # owns a reference


cdef class Held:
    cdef Message* message
    cdef uint64_t place


@cython.final
cdef class WaitingQueue:
    cdef Turn turn
    cdef Tenant tenant
    cdef Waiting* ring             # messages that were never given, by place: `capacity` of them ...
    cdef uint64_t head, tail, capacity
    cdef Waiting* back             # messages that came back: a heap by place
    cdef Py_ssize_t back_count, back_capacity
    cdef KeyTable keys             # of the group, with messages that wait there; None: no order by key
    cdef object aside              # deque of Held: messages that no subscriber with room may take; or None
    cdef uint64_t count            # messages that wait, wherever ...
    cdef uint64_t size             # ... and their bytes
    cdef int64_t earliest          # no message that waits expires before; NEVER_EXPIRES = none expires
    cdef dict newest               # topic -> (place, age) of the message that waits, with `last_value`; None: not noted

    cdef int count_message(self, int n, Message* message) except -1
    cdef bint is_full(self, GroupSettings settings, const Message* message) noexcept
    cdef bint waits(self) noexcept
    cdef uint64_t in_order(self) noexcept
    cdef int add(self, uint64_t place, Message* message) except -1
    cdef int come_back(self, uint64_t place, Message* message) except -1
    cdef int put_back(self, Waiting waiting) except -1
    cdef Waiting* first(self) noexcept
    cdef Waiting take_first(self) noexcept
    cdef int put_aside(self, Waiting waiting) except -1
    cdef int park(self, Key key, Waiting waiting) except -1
    cdef Waiting take_parked(self, Key key) except *
    cdef int recall(self) except -1
    cdef int set_keys(self, KeyTable keys) except -1
    cdef Waiting take_oldest(self) except *
    cdef list take_expired(self)
    cdef bint has_expired(self, const Message* message) noexcept
    cdef Message** at(self, uint64_t place) except? NULL
    cdef Message** newest_of(self, const Message* message, uint64_t* place, uint64_t* age) except? NULL
    cdef int replace(self, Message** at, uint64_t place, uint64_t age, Message* message) except -1
    cdef int note_all(self) except -1
    cdef void note_expiry(self, const Message* message) noexcept
    cdef void count_queued(self, int64_t messages, int64_t size) noexcept


cdef Held held_of(Waiting waiting)
