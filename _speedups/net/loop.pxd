# What the connections of a node share, and what each may ask of their loop. See loop.pyx.

from libc.stdint cimport uint8_t, uint32_t

from _speedups.base.buffers cimport Pointers
from _speedups.base.timer_wheel cimport TimerWheel
from _speedups.routing.router cimport Router
from _speedups.session.turn cimport Turn

cdef enum:
    READ_MAX = 262144          # bytes read from one connection in one turn
    TAIL_MAX = 4096            # an incomplete packet up to this size is copied to the front of the shared buffer


cdef class Loop:
    cdef readonly Turn turn
    cdef Router router
    cdef object handler
    cdef int epoll
    cdef int pending_epoll             # an epoll set in that one: connections without CONNACK
    cdef uint8_t* shared               # what every connection reads into
    cdef uint8_t* record               # where head and payload of a frame are put together for TLS
    cdef dict connections              # fd -> Connection: owns them
    cdef dict awaiting_connect         # fd -> Connection that has not sent CONNECT, oldest first
    cdef dict addresses                # address -> its connections, where a listener counts them
    cdef list rate_limited             # Connections that are
    cdef list read_again               # Connections that have read more from their sockets than they have handled
    cdef Pointers to_close             # Connections to be ended at the end of the turn (owned references)
    cdef list closed_this_turn         # Connections that have ended; events may still name them
    cdef TimerWheel wheel
    cdef readonly uint32_t connect_ticks # that CONNECT may take
    cdef readonly uint32_t retry_ticks   # after which level 3 is sent again what it has not acknowledged; 0 = never
