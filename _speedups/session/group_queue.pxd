# The messages of a shared subscription that no member has. See group_queue.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from .group_keys cimport Key, KeyTable
from .group_settings cimport GroupSettings
from .message cimport Message
from .subscriber cimport Subscriber

cdef struct Waiting:
    uint64_t place
    Message* message               # owns a reference


cdef class Held:
    cdef Message* message
    cdef uint64_t place


cdef class GroupQueue(Subscriber):
    cdef readonly GroupSettings settings
    cdef uint32_t ready_count
    cdef Waiting* queue            # messages that were never given, by place: a ring of `capacity` ...
    cdef uint64_t head, tail, capacity
    cdef Waiting* back             # messages that came back: a heap by place
    cdef Py_ssize_t back_count, back_capacity
    cdef KeyTable keys             # None: no order by key
    cdef object aside              # deque of Held: messages that no member with room may take
    cdef uint64_t waiting_bytes
    cdef int64_t earliest          # no message that waits expires before; NEVER_EXPIRES = none expires
    cdef dict newest               # topic -> (place, age) of the message that waits, with `last_value`; None: not noted
    cdef dict failures             # place -> (deliveries, last reason code, client id); None = none came back
    cdef object dead               # deque of Held: dead letters, to be published at the end of the turn

    cdef uint64_t waiting_count(self)
    cdef int key_done(self, uint64_t place) except -1
    cdef int forget_key(self, uint64_t place) except -1
    cdef int park(self, Key key, Waiting waiting) except -1
    cdef Waiting take_parked(self, Key key) except *
    cdef bint waits(self) noexcept
    cdef bint is_full(self, const Message* message) except -1
    cdef int wait(self, uint64_t place, Message* message, bint recorded) except -1
    cdef bint drop_oldest(self) except -1
    cdef bint drop_expired(self) except -1
    cdef bint has_expired(self, const Message* message) noexcept
    cdef int expire(self, Waiting expired) except -1
    cdef void note_expiry(self, const Message* message) noexcept
    cdef int discard(self, Waiting dropped, str reason) except -1
    cdef int put_back(self, Waiting waiting) except -1
    cdef int recall(self) except -1
    cdef Waiting* first(self) noexcept
    cdef Waiting take_first(self) noexcept
    cdef int count_waiting(self, int n, Message* message) except -1
    cdef void count_queued(self, int64_t messages, int64_t size) noexcept
    cdef Message* lower_expiry(self, Message* message) except NULL
    cdef int note_all(self) except -1
    cdef int note(self, uint64_t place, Message* message) except -1
    cdef int forget(self, Message* message) except -1
    cdef Message** waiting_at(self, uint64_t place) except? NULL
    cdef bint supersede(self, uint64_t place, Message* message, bint is_new) except -1
    cdef int record_queued(self, uint64_t place, Message* message) except -1
    cdef int record_done(self, uint64_t place) except -1
    cdef int note_failure(self, uint64_t place, uint8_t code, bytes client_id) except -1
    cdef int forget_failures(self, uint64_t place) except -1
    cdef uint32_t deliveries(self, uint64_t place) except? 0
    cdef bytes last_of(self, uint64_t place)
    cdef bint has_failed(self, uint64_t place) except -1
    cdef int take_dead(self, uint64_t place, Message* message) except -1
    cdef int record_failure(self, uint64_t place) except -1

cdef Held held_of(Waiting waiting)
