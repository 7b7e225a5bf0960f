# A connection: socket, layers, timer. See connection.pyx.

from libc.stdint cimport uint8_t, uint32_t

from ..base.buffers cimport Buffer
from ..base.flag cimport flag
from ..base.rate_limit cimport RateLimit
from ..base.timer_wheel cimport Timer
from .address cimport Address
from .listener cimport Endpoint
from .loop cimport Loop
from .tls cimport Tls
from .websocket cimport WebSocket
from ..protocol.channel cimport Channel


cdef class Connection(Channel):
    # The fields that every flush reads are adjacent: with a thousand receivers each cache line counts a thousandfold.
    cdef int fd                        # -1 when closed
    cdef uint32_t interest             # requested epoll events
    cdef readonly Endpoint endpoint    # the endpoint that accepted it
    cdef Tls tls                       # None: plain text
    cdef WebSocket websocket           # None: no frames
    cdef readonly flag lingering       # all output is sent; waits for the client to close
    cdef flag awaits_connect           # is in loop.awaiting_connect
    cdef flag overdue                  # the time for CONNECT and authentication is over
    cdef flag resets                   # as of `reset_on_close`
    cdef flag in_preamble              # reads the bytes before the first byte of MQTT or HTTP:
    cdef flag in_proxy_header          # ... a PROXY protocol header, then TLS if the endpoint uses it
    cdef flag is_pending               # in the epoll set of connections without CONNACK
    cdef flag counted                  # counted among the connections of its address
    cdef flag tls_wants_write          # TLS must write before it can read on
    cdef flag reads_again              # is in loop.read_again
    cdef flag reads_last               # gives way, and reads what has arrived once more
    cdef Address peer
    cdef public uint32_t connect_number # of its CONNECT: see `is_newer_than`
    cdef readonly uint32_t accepted_tick # when CONNACK was sent, by the turn's clock of quarters of a second
    cdef Loop loop
    cdef Buffer incoming               # bytes of an incomplete packet, or of packets that may not be handled yet
    cdef Timer timer                   # for CONNECT, then for keep alive
    cdef object reason                 # reason of the close
    cdef list giving_way               # reason for which it ends when all that has arrived is handled, then what is
                                       # called after that; None: it stays
    cdef readonly str certificate      # subject of the client's certificate, as configured, or None
    cdef RateLimit* rates              # METERS of them; NULL while it is not metered

    cdef bint transmit(self) except -1
    cdef int send_close_notices(self) except -1
    cdef int set_interest(self, uint32_t interest) except -1
    cdef int admitted(self) except -1
    cdef bint count_address(self) except -1
    cdef int uncount_address(self) except -1
    cdef int meter(self) except -1
    cdef bint within_rate(self) noexcept
    cdef int apply_rate_limit(self) except -1
    cdef int resume_rate_limited(self) except -1
    cdef int handle_pending(self) except -1
    cdef bint has_arrivals(self) noexcept
    cdef int go_on_giving_way(self) except -1
    cdef int update_interest(self) except -1
    cdef int queue_read_again(self) except -1
    cdef bint on_read_error(self, Py_ssize_t result) except -1
    cdef void connect_received(self) noexcept
    cdef int restart_timer(self) except -1
    cdef int check_timeout(self) except -1
    cdef int close_soon(self, object reason) except -1
    cdef bint send_reason(self, object reason) except -1
    cdef int end(self, object reason) except -1


cdef Connection connection_of(Timer* timer)
