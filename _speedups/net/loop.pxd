# The state that the connections of a node share, and the loop's interface for them. See loop.pyx.

from libc.stdint cimport uint8_t, uint32_t

from ..base.buffers cimport Pointers
from ..base.timer_wheel cimport TimerWheel
from ..routing.router cimport Router
from ..session.turn cimport Turn

cdef enum:
    READ_MAX = 262144          # bytes read from one connection in one turn
    TAIL_MAX = 4096            # an incomplete packet up to this size is copied to the front of the shared buffer


cdef class Loop:
    cdef readonly Turn turn
    cdef Router router
    cdef object handler
    cdef int epoll
    cdef int pending_epoll             # an epoll set within the first: connections without CONNACK
    cdef uint8_t* shared               # read buffer of all connections
    cdef uint8_t* record               # joins head and payload of a frame for TLS
    cdef list connections              # by file descriptor: owns them; None where there is none
    cdef Py_ssize_t connection_count
    cdef dict awaiting_connect         # fd -> Connection that has not sent CONNECT or AUTH, oldest first
    cdef dict addresses                # address -> number of its connections, if a listener limits them
    cdef readonly list rate_limited    # Connections over a rate
    cdef list read_again               # Connections with bytes read ahead and not handled
    cdef list heirs                    # called at the end of the turn, since Connections have given way
    cdef Pointers to_close             # Connections to end at the end of the turn (owned references)
    cdef dict departing                # fd -> tick of its end: sockets whose clients may still read the last packet
    cdef list closed_this_turn         # ended Connections; pending events may still name them
    cdef TimerWheel wheel
    cdef readonly uint32_t connect_ticks # time for CONNECT
    cdef readonly uint32_t retry_ticks # after which unacknowledged packets are sent again at level 3; 0 = never

    cdef int leave(self, int fd, bint pending) except -1
    cdef int close_departing(self) except -1
