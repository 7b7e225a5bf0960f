# A connection of the node itself, served in the turns of its reactor. See outgoing_connection.pyx.

from libc.stdint cimport uint64_t

from ..base.buffers cimport Buffer
from .reactor cimport Reactor
from ..session.turn cimport Outlet

cdef enum:
    STREAM_READ = 65536        # bytes of room for each read, at least


cdef class OutgoingConnection(Outlet):
    cdef Reactor reactor
    cdef int fd                        # the socket; -1: not open
    cdef int epoll                     # an epoll set with the socket
    cdef Buffer incoming               # bytes that are not handled
    cdef Py_ssize_t sendable           # bytes of the output that may be sent for now; -1: all
    cdef bint flush_requested
    cdef uint64_t publications         # messages of clients that it has brought

    cdef int handle_input(self) except -1
    cdef int ended(self) except -1
    cdef int flush_soon(self) except -1
    cdef int watch_output(self, bint wanted) noexcept
    cdef int hang_up(self) except -1
