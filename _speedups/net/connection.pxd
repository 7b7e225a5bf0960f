# One connection: socket, layers, timer. See connection.pyx.

from libc.stdint cimport uint8_t, uint32_t

from _speedups.base.buffers cimport Buffer
from _speedups.base.rate_limit cimport RateLimit
from _speedups.base.timer_wheel cimport Timer
from _speedups.net.listener cimport Endpoint
from _speedups.net.loop cimport Loop
from _speedups.net.tls cimport Tls
from _speedups.net.websocket cimport WebSocket
from _speedups.protocol.channel cimport Channel


cdef class Connection(Channel):
    # What every flush looks at stands together: a thousand receivers are a thousand times as many lines of cache.
    cdef int fd                        # -1 when closed
    cdef uint32_t interest             # epoll events asked for
    cdef readonly Endpoint entrance    # that accepted it
    cdef Tls tls                       # None: in plain text
    cdef WebSocket websocket           # None: no frames
    cdef readonly bint lingering       # all is sent; waits for the client to close
    cdef Loop loop
    cdef Buffer incoming               # bytes of an incomplete packet, or that may not be handled yet
    cdef Timer timer                   # of CONNECT, then of keep alive
    cdef bint awaits_connect           # counts among those that have not sent CONNECT
    cdef public bint unsettled         # it ends with a reset: a clean end would tell the client of what is not stored yet
    cdef str reason                    # of the end
    cdef uint8_t peer[28]              # struct sockaddr_in or sockaddr_in6, or only the family
    cdef readonly str certificate      # subject of the certificate that the client showed, as configured, or None
    cdef bint in_preamble              # something comes before the first byte of MQTT or HTTP:
    cdef bint in_proxy_header          # ... a PROXY protocol header; and then TLS, if the endpoint wants it
    cdef bint is_pending               # in the epoll set of those without CONNACK
    cdef bint counted                  # among the connections of its address
    cdef RateLimit messages, volume        # what it used of its rates
    cdef bint tls_wants_write          # TLS can't read on before it has written
    cdef bint reads_again              # is in loop.read_again

    cdef bint transmit(self) except -1
    cdef Py_ssize_t push(self, const uint8_t* p, Py_ssize_t size) except -4
    cdef Py_ssize_t push_frame(self, const uint8_t* p, Py_ssize_t size) except -4
    cdef int send_close_notices(self) except -1
    cdef int set_client_address(self, int family, bytes address, int port) except -1
    cdef int set_interest(self, uint32_t interest) except -1
    cdef int admitted(self) except -1
    cdef bytes origin(self)
    cdef bint count_address(self) except -1
    cdef int uncount_address(self) except -1
    cdef bint within_rate(self) noexcept
    cdef int apply_rate_limit(self) except -1
    cdef int resume_rate_limited(self) except -1
    cdef int handle_pending(self) except -1
    cdef int update_interest(self) except -1
    cdef int queue_read_again(self) except -1
    cdef bint on_read_error(self, Py_ssize_t result) except -1
    cdef void connect_received(self) noexcept
    cdef int restart_timer(self) except -1
    cdef int check_timeout(self) except -1
    cdef int close_soon(self, str reason) except -1
    cdef int end(self, str reason) except -1


cdef Connection connection_of(Timer* timer)
