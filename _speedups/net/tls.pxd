# TLS by OpenSSL, directly on the sockets. See tls.pyx.

from libc.stdint cimport int64_t, uint8_t

from .openssl cimport SSL, SSL_CTX
from .ticket_keys cimport TicketKeyRing

cdef enum:
    RECORD_MAX = 16384        # bytes of payload in one record
    READ_AHEAD = 32768         # bytes that OpenSSL reads from the socket at once, after the handshake
    # Results of read, write and handshake that are not a number of bytes.
    WANTS_READ = -1            # continue when the socket is readable
    WANTS_WRITE = -2           # ... when it is writable
    FAILED = -3                # see `fault`


cdef class TlsContext:
    cdef SSL_CTX* context
    cdef list others                   # TlsContexts of further certificates
    cdef TicketKeyRing ticket_keys     # None = no session is resumed
    cdef bytes protocols               # of ALPN, in the encoding of the handshake
    cdef readonly str username_from    # value of a connection's `certificate`: "none", "cn", "subject"
    cdef readonly int64_t expires      # seconds since 1970; of the certificate that expires first

    cdef int use(self, certificate, key) except -1
    cdef SSL_CTX* named(self, const char* name) noexcept


cdef class Tls:
    cdef SSL* ssl
    cdef TlsContext context            # its callbacks may be called during the lifetime of this object
    cdef readonly bint ready           # the handshake is done
    cdef readonly str fault
    cdef readonly bint more            # `read` would return bytes at once, even without a socket event

    cdef Py_ssize_t handshake(self) except -4
    cdef Py_ssize_t read(self, uint8_t* p, Py_ssize_t room) except -4
    cdef Py_ssize_t write(self, const uint8_t* p, Py_ssize_t n) except -4
    cdef Py_ssize_t explain(self, int result) except -4
    cdef bint resumed(self) noexcept
    cdef str server_name(self)
    cdef str certificate(self)
    cdef int shutdown(self) except -1
