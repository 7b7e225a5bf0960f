# The sockets of a node, turn by turn. See reactor.pyx.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from .acceptor cimport Acceptor
from .connection cimport Connection
from .wakeup cimport Wakeup

cdef enum:
    DIRECT_MAX = 1048576       # bytes read at once into a large packet's own buffer
    KEPT_MAX = 16777216        # free bytes that are not returned to the kernel
    PENDING_MAX = 64           # pending connections served in one turn ...
    PENDING_TIME = 1000000     # ... and ns after which the next one waits for the next turn
    READ_METERED = 16384       # bytes read at once from a client with a rate limit
    EVENTS_MAX = 512           # connections served in one turn
    PAUSE_TICKS = 4            # until accepting is retried


cdef class Reactor(Acceptor):
    cdef Wakeup wakeup
    cdef int64_t lease_deadline        # after this no client is served, ns; 0 = no deadline
    cdef readonly object on_lease_expired  # callable: called instead
    cdef bint soon                     # another turn has been requested
    cdef object driver                 # runs the turns
    cdef int loop_fd                   # descriptor of the event loop, ready when it has something to do; -1: none
    cdef int alarm_fd                  # likewise, ready when a timer of the loop is due
    cdef dict readers                  # file descriptor -> what to call in a turn in which it is readable
    cdef bint is_served                # between `start` and `stop`
    cdef bint in_turn                  # output is sent at the end of the turn
    cdef list last                     # Outlets to flush when all others are; None: an outlet is flushed at once

    cdef int watch_loop(self, int fd, int alarm) except -1
    cdef bint is_loops(self, uint64_t tag) noexcept
    cdef bint take_turn(self, int timeout) except -1
    cpdef int end_turn(self) except -1
    cdef int serve(self, Connection c, uint32_t events) except -1
    cdef int serve_pending(self) except -1
    cdef int serve_read_again(self) except -1
    cdef int resume_rate_limited(self) except -1
    cdef int readable(self, Connection c) except -1
    cdef int process_input(self, Connection c, Py_ssize_t n) except -1
    cdef int close_pending(self) except -1
    cdef int call_heirs(self) except -1
    cdef int flush_last(self) except -1
