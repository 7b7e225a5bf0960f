# Messages to `$delayed/SECONDS/TOPIC`, which wait until they are due. See delayed.pyx.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from ..session.message cimport Message, Publication
from ..session.turn cimport Turn

cdef enum:
    MAX_DELAY = 4294967        # seconds; 2^32 milliseconds are a little more

cdef int64_t NEVER             # when a staged chunk of a transaction is due


# A message that waits.
cdef struct Waiting:
    int64_t due                # milliseconds of the store's clock
    uint64_t number            # its place in the order of arrival
    Message* message           # an owned reference; its properties have the whole Message Expiry Interval
    PyObject* publisher        # an owned reference: client id, empty = the broker


cdef inline bint is_delayed(const uint8_t* topic, Py_ssize_t n) noexcept nogil:
    """Whether the topic name asks for a delay, rightly or wrongly."""
    return n >= 8 and memcmp(topic, b"$delayed", 8) == 0 and (n == 8 or topic[8] == c'/')


cdef Py_ssize_t delay_of(const uint8_t* topic, Py_ssize_t n, uint32_t* seconds) noexcept nogil


cdef class DelayedMessages:
    cdef Turn turn
    cdef Waiting* items        # a heap: no item is due before its parent, at half its place
    cdef Py_ssize_t waiting, capacity
    cdef Py_ssize_t recorded   # of a compaction: the items before this place are written again
    cdef uint64_t arrivals
    cdef readonly int64_t count
    cdef readonly int64_t size
    cdef int64_t max_messages, max_bytes
    cdef int64_t first         # of a cluster: when the first message is due, as last reported
    cdef object clock          # callable: the store's clock in milliseconds
    cdef object on_first       # callable that takes the time at which a new first message is due

    cdef bint is_full(self, const uint8_t* topic, Py_ssize_t n, Py_ssize_t size) except -1
    cdef int count_for_tenant(self, const Message* message, int n) except -1
    cdef int keep(self, const Publication* publication, Py_ssize_t at, uint32_t seconds) except -1
    cdef int push_new(self, Message* m, int64_t due, bytes publisher) except -1
    cdef int push(self, Waiting item) except -1
    cdef bint pop(self, int64_t now, Waiting* found) except -1
    cdef int take(self, Py_ssize_t i, Waiting* found) except -1
    cdef int order(self) noexcept nogil
    cdef int sink(self, Py_ssize_t i, Waiting item) noexcept nogil
    cdef Py_ssize_t place_of(self, uint64_t number) noexcept nogil
    cdef int record(self, Waiting* item) except -1
    cdef bint record_again(self, Py_ssize_t i) except -1
