# Listeners and their endpoints. See listener.pyx.

from libc.stdint cimport uint32_t, uint64_t

from ..base.rate_limit cimport RateLimit
from .tls cimport TlsContext

cdef enum:                     # places of the limits of one client
    MESSAGES = 0
    VOLUME = 1                 # bytes
    METERS = 2


cdef class Listener:
    cdef readonly str name
    cdef readonly TlsContext tls       # for its endpoints that are `secure`
    cdef readonly uint32_t max_connections
    cdef readonly uint32_t max_per_address # connections; 0 = no limit
    cdef readonly double connects      # per second; 0 = no limit, here and below
    cdef readonly double client_messages # PUBLISH packets per second from one client ...
    cdef readonly double client_bytes  # ... and bytes of its packets
    cdef readonly double total_messages  # from all clients of the listener
    cdef readonly double total_bytes
    cdef readonly uint32_t max_packet_size # bytes
    cdef RateLimit accepted_lately, messages, volume
    cdef readonly uint32_t connections
    cdef readonly uint64_t accepted
    cdef readonly uint64_t refused     # connections closed at once, because of max_connections
    cdef readonly uint64_t bytes_received
    cdef readonly uint64_t bytes_sent

    cdef bint metered(self) noexcept
    cdef int charge(self, RateLimit* client, bint is_publish, Py_ssize_t size, uint32_t tick) noexcept
    cdef bint within_rate(self, RateLimit* client, uint32_t tick) noexcept


cdef class Endpoint:
    cdef readonly Listener listener
    cdef object socket                 # listening; None if connections are passed in (`adopt`)
    cdef readonly str transport
    cdef bint secure                   # begins with TLS
    cdef bint websocket                # then HTTP, and frames
    cdef object trusts                 # callable: whether an address is a trusted proxy; None = no proxies
    cdef object upgrade                # callable: returns the response to an HTTP request
