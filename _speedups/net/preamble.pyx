"""What comes before the first byte of MQTT: a PROXY protocol header, TLS's handshake, the HTTP request of WebSocket."""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from _speedups.base.buffers cimport buffer_append, buffer_free, buffer_size
from _speedups.net.connection cimport Connection
from _speedups.net.posix cimport MSG_DONTWAIT, MSG_PEEK, memmem, recv
from _speedups.net.tls cimport FAILED, Tls
from _speedups.session.counters cimport BYTES_RECEIVED, TLS_FAILURES, TLS_HANDSHAKES, WEBSOCKET_FAILURES

from _speedups.net.proxy_header import HEADER_MAX, read_proxy_header as parse_proxy_header

cdef enum:
    REQUEST_MAX = 8192         # bytes of the HTTP request that a WebSocket begins with


cdef bint read_preamble(Connection c) except -1:
    """Read what comes before the first byte of MQTT or HTTP; returns whether all of it has come."""
    if c.in_proxy_header and not read_proxy_header(c):
        return False
    if c.entrance.secure and not tls_handshake(c):
        return False
    c.in_preamble = False
    return True


cdef bint read_proxy_header(Connection c) except -1:
    """Read the PROXY protocol header as far as it has come, and no byte after it: those may be TLS's."""
    cdef uint8_t* shared = c.loop.shared
    cdef Py_ssize_t have = buffer_size(&c.incoming), size
    cdef ssize_t got
    memcpy(shared, c.incoming.data + c.incoming.start, have)
    got = recv(c.fd, shared + have, <Py_ssize_t>HEADER_MAX - have, MSG_PEEK | MSG_DONTWAIT)
    if got <= 0:
        return c.on_read_error(got)
    try:
        size, client = parse_proxy_header(shared[:have + got])
    except ValueError as error:
        c.protocol_error(str(error))
        c.update_interest()
        return False
    if size:
        got = size - have
    got = recv(c.fd, shared + have, got, MSG_DONTWAIT)
    c.turn.counters[BYTES_RECEIVED] += got
    if not size:                               # incomplete, so all that has come belongs to it
        if buffer_append(&c.incoming, &c.turn.pool, shared + have, got) < 0:
            c.close_soon("out of memory")
        return False
    buffer_free(&c.incoming, &c.turn.pool)
    c.in_proxy_header = False
    if client is not None:
        family, address, port = client
        c.set_client_address(family, address, port)
    if not c.count_address():
        c.update_interest()
        return False
    return True


cdef bint tls_handshake(Connection c) except -1:
    """A step of TLS's handshake; returns whether it is done. It takes the time of its own cryptography."""
    cdef Py_ssize_t result
    if c.tls is None:
        c.tls = Tls(c.entrance.listener.tls, c.fd)
    result = c.tls.handshake()
    if result == 1:
        c.turn.counters[TLS_HANDSHAKES] += 1
        c.certificate = c.tls.certificate()
        return True
    if result == FAILED:
        c.turn.counters[TLS_FAILURES] += 1
        c.fault = c.tls.fault
    return c.on_read_error(result)


cdef Py_ssize_t upgrade_websocket(Connection c, Py_ssize_t n) except -1:
    """Answer the HTTP request in the first `n` bytes of the shared buffer.

    Returns its size; 0 if it is incomplete or refused.
    """
    cdef uint8_t* shared = c.loop.shared
    cdef uint8_t* end = <uint8_t*>memmem(shared, min(n, <Py_ssize_t>REQUEST_MAX), b"\r\n\r\n", 4)
    cdef Py_ssize_t size = end + 4 - shared if end != NULL else 0
    if not size and n < REQUEST_MAX and shared[0] == c'G':
        return 0
    answer, fault = c.entrance.upgrade(shared[:size], c.tls is not None)
    c.send(answer)
    c.websocket.framed = len(answer)           # these bytes go without a frame
    if not fault:
        c.websocket.ready = True
        return size
    c.turn.counters[WEBSOCKET_FAILURES] += 1
    c.flush()
    c.finish(fault)
    return 0


cdef int after_frames(Connection c) except -1:
    """After frames were decoded: send the answer that a control frame asks for, or end the connection."""
    if c.websocket.code == 0:
        return c.flush() if c.websocket.answer_size else 0
    if c.websocket.fault is None:
        return c.close_soon("closed by the client")
    if c.fault is None:
        c.turn.counters[WEBSOCKET_FAILURES] += 1
        c.protocol_error(c.websocket.fault)
    return 0
