# Where connections come in. See listener.pyx.

from libc.stdint cimport uint32_t, uint64_t

from _speedups.base.rate_limit cimport RateLimit
from _speedups.net.tls cimport TlsContext


cdef class Listener:
    cdef readonly str name
    cdef readonly TlsContext tls         # for those of its addresses that are `secure`
    cdef readonly uint32_t max_connections
    cdef readonly uint32_t max_per_address   # connections; 0 = no limit
    cdef readonly double connects        # a second; 0 = no limit, here and below
    cdef readonly double client_messages # PUBLISH packets a second from one client ...
    cdef readonly double client_bytes    # ... and bytes of its packets
    cdef readonly double total_messages  # from all clients of the listener
    cdef readonly double total_bytes
    cdef RateLimit accepted_lately, messages, volume
    cdef readonly uint32_t connections
    cdef readonly uint64_t accepted
    cdef readonly uint64_t refused     # closed at once, because there were max_connections
    cdef readonly uint64_t bytes_received
    cdef readonly uint64_t bytes_sent

    cdef bint metered(self) noexcept


cdef class Endpoint:
    cdef readonly Listener listener
    cdef object socket                 # listens; None if its connections are handed in
    cdef readonly str transport
    cdef bint secure                   # TLS comes first
    cdef bint websocket                # then HTTP, and frames
    cdef object trusts                 # callable: is this the address of a proxy? None = no proxies here
    cdef object upgrade                # callable: what is answered to a HTTP request
