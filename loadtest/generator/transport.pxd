# The layers between a client's socket and its MQTT: TLS by OpenSSL, then WebSocket. Without the GIL.
#
# `raw_read` and `transport_send` are like read(2) and send(2): -1 with EAGAIN when the socket is not ready. The masks
# of WebSocket frames are zeros, which is allowed and costs nothing: the broker is to be measured.

from libc.errno cimport EAGAIN, EPROTO, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memmove, strlen
from posix.unistd cimport read

from ..._speedups.net.openssl cimport (
    SSL,
    SSL_CTX,
    SSL_ERROR_WANT_READ,
    SSL_ERROR_WANT_WRITE,
    SSL_ERROR_ZERO_RETURN,
    ERR_clear_error,
    SSL_do_handshake,
    SSL_free,
    SSL_get_error,
    SSL_new,
    SSL_read,
    SSL_set_connect_state,
    SSL_set_fd,
    SSL_write,
)

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_NOSIGNAL
    ssize_t send(int fd, const void* data, size_t size, int flags)

cdef enum:
    MAX_FRAME_HEAD = 14              # bytes of a frame before its payload

cdef struct Transport:
    SSL* ssl                    # NULL: plain text
    bint websocket
    bint request_sent           # the HTTP request
    uint64_t remaining          # unread bytes of the frame's payload
    bint control                # of a control frame: not MQTT
    uint8_t[MAX_FRAME_HEAD] head  # of a frame whose head is incomplete
    uint8_t head_size


cdef inline ssize_t ssl_result(SSL* ssl, int result) noexcept nogil:
    cdef int kind = SSL_get_error(ssl, result)
    errno = EAGAIN if kind == SSL_ERROR_WANT_READ or kind == SSL_ERROR_WANT_WRITE else EPROTO
    return 0 if kind == SSL_ERROR_ZERO_RETURN else -1


cdef inline ssize_t raw_read(Transport* t, int fd, uint8_t* data, size_t room) noexcept nogil:
    cdef ssize_t total = 0
    cdef int got
    if t.ssl == NULL:
        return read(fd, data, room)
    ERR_clear_error()
    while total < <ssize_t>room:
        got = SSL_read(t.ssl, data + total, <int>(room - <size_t>total))
        if got <= 0:
            return total if total else ssl_result(t.ssl, got)
        total += got
    return total


cdef inline ssize_t transport_send(Transport* t, int fd, const uint8_t* data, size_t size) noexcept nogil:
    cdef size_t total = 0
    cdef int sent
    if t.ssl == NULL:
        return send(fd, data, size, MSG_NOSIGNAL)
    ERR_clear_error()
    while total < size:
        sent = SSL_write(t.ssl, data + total, <int>(size - total))
        if sent <= 0:
            return <ssize_t>total if total else ssl_result(t.ssl, sent)
        total += <size_t>sent
    return <ssize_t>total


cdef inline size_t head_length(const uint8_t* head, size_t size) noexcept nogil:
    """Bytes of the head of a server's frame; 0 if it is incomplete."""
    cdef size_t length
    if size < 2:
        return 0
    length = 2 + (2 if head[1] == 126 else 8 if head[1] == 127 else 0)
    return length if size >= length else 0


cdef inline void read_head(Transport* t, const uint8_t* head, size_t length) noexcept nogil:
    cdef size_t i
    t.control = head[0] & 8 != 0
    t.remaining = head[1]
    if length > 2:
        t.remaining = 0
        for i in range(2, length):
            t.remaining = t.remaining << 8 | head[i]


cdef inline ssize_t unframe(Transport* t, uint8_t* data, size_t size) noexcept nogil:
    """Leave only the payloads of frames in `data`; returns their size."""
    cdef uint8_t* at = data
    cdef uint8_t* end = data + size
    cdef uint8_t* out = data
    cdef size_t length
    while at < end:
        if t.remaining == 0:
            length = head_length(at, <size_t>(end - at)) if t.head_size == 0 else 0
            if length:
                read_head(t, at, length)
                at += length
            else:
                t.head[t.head_size] = at[0]
                t.head_size += 1
                at += 1
                length = head_length(t.head, t.head_size)
                if length:
                    read_head(t, t.head, length)
                    t.head_size = 0
            continue
        length = min(t.remaining, <uint64_t>(end - at))
        if not t.control:
            memmove(out, at, length)
            out += length
        at += length
        t.remaining -= length
    return out - data


cdef inline uint8_t* put_head(uint8_t* p, size_t size) noexcept nogil:
    """The head of a client's frame of `size` bytes."""
    cdef int shift
    p[0] = 0x82
    p[1] = 0x80 | (<uint8_t>size if size < 126 else 126 if size < 65536 else 127)
    p += 2
    if size >= 126:
        for shift in range(8 if size < 65536 else 56, -8, -8):
            p[0] = <uint8_t>(size >> shift)
            p += 1
    p[0] = p[1] = p[2] = p[3] = 0
    return p + 4


cdef inline int transport_open(
    Transport* t, int fd, SSL_CTX* context, const char* request, uint8_t* buffer, size_t room
) noexcept nogil:
    """A step of the handshakes. Returns 1 if done, 0 to continue when the socket is ready, -1 if failed."""
    cdef int result
    cdef ssize_t count
    if context != NULL:
        if t.ssl == NULL:
            t.ssl = SSL_new(context)
            if t.ssl == NULL or SSL_set_fd(t.ssl, fd) != 1:
                return -1
            SSL_set_connect_state(t.ssl)
        ERR_clear_error()
        result = SSL_do_handshake(t.ssl)
        if result != 1:
            ssl_result(t.ssl, result)
            return 0 if errno == EAGAIN else -1
    if not t.websocket:
        return 1
    if not t.request_sent:
        t.request_sent = True
        if transport_send(t, fd, <const uint8_t*>request, strlen(request)) != <ssize_t>strlen(request):
            return -1
    count = raw_read(t, fd, buffer, room)
    if count < 0:
        return 0 if errno == EAGAIN else -1
    # The broker sends nothing more before CONNECT, so its response arrives alone; and it is short.
    return 1 if count > 16 and memcmp(buffer, b"HTTP/1.1 101", 12) == 0 and memcmp(
        buffer + count - 4, b"\r\n\r\n", 4) == 0 else -1


cdef inline void transport_free(Transport* t) noexcept nogil:
    SSL_free(t.ssl)
    t.ssl = NULL
    t.remaining = t.head_size = 0
    t.request_sent = False
