# Accepts connections. See acceptor.pyx.

from libc.stdint cimport uint8_t, uint32_t

from .connection cimport Connection
from .listener cimport Endpoint
from .loop cimport Loop

cdef enum:
    ACCEPT_TIME = 1000000      # ns of a turn after which accepting continues in the next turn


cdef class Acceptor(Loop):
    cdef dict endpoints                # fd -> Endpoint
    cdef readonly dict listeners       # name -> Listener, of present and former endpoints
    cdef set paused                    # fds of endpoints that accept nothing for now
    cdef uint32_t paused_at            # tick
    cdef bint at_capacity              # the handler was notified that accepting has stopped
    cdef readonly uint32_t max_connections
    cdef readonly uint32_t max_pending

    cdef object watch(self, int fd, uint32_t flags=*)
    cdef int pause(self, int fd, bint at_capacity) except -1
    cdef int resume_accepting(self) except -1
    cdef bint has_room(self) except -1
    cdef int accept(self, int listener) except -1
    cdef Connection open(self, int fd, const uint8_t* peer, uint32_t size, Endpoint endpoint)
