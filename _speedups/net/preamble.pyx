"""The preamble, before the first byte of MQTT: PROXY protocol header, TLS handshake, HTTP request of WebSocket."""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from ..base.buffers cimport buffer_append, buffer_free, buffer_size
from .address cimport address_set
from .connection cimport Connection
from .posix cimport MSG_DONTWAIT, MSG_PEEK, memmem, recv
from .tls cimport FAILED, Tls
from ..session.counters cimport BYTES_RECEIVED, TLS_FAILURES, TLS_HANDSHAKES, TLS_RESUMED, WEBSOCKET_FAILURES

from .proxy_header import HEADER_MAX, read_proxy_header as parse_proxy_header
from ..protocol import close_reasons

cdef enum:
    REQUEST_MAX = 8192         # bytes of the HTTP request that opens a WebSocket


cdef bint read_preamble(Connection c) except -1:
    """Read the bytes before the first byte of MQTT or HTTP; returns whether they are complete."""
    if c.in_proxy_header and not read_proxy_header(c):
        return False
    if c.endpoint.secure and not tls_handshake(c):
        return False
    c.in_preamble = False
    return True


cdef bint read_proxy_header(Connection c) except -1:
    """Read the received part of the PROXY protocol header, and no byte after it: it may belong to TLS."""
    cdef uint8_t* shared = c.loop.shared
    cdef Py_ssize_t have = buffer_size(&c.incoming), size
    cdef ssize_t got
    if have:
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
    if not size:                               # incomplete, so all received bytes belong to it
        if buffer_append(&c.incoming, &c.turn.pool, shared + have, got) < 0:
            c.close_soon(close_reasons.OUT_OF_MEMORY)
        return False
    buffer_free(&c.incoming, &c.turn.pool)
    c.in_proxy_header = False
    if client is not None:
        family, address, port = client
        address_set(&c.peer, family, address, port)
    if not c.count_address():
        c.update_interest()
        return False
    return True


cdef bint tls_handshake(Connection c) except -1:
    """Make a step of the TLS handshake; returns whether it is done. Its cryptography takes time of this turn."""
    cdef Py_ssize_t result
    if c.tls is None:
        c.tls = Tls(c.endpoint.listener.tls, c.fd)
    result = c.tls.handshake()
    if result == 1:
        c.turn.counters[TLS_HANDSHAKES] += 1
        c.turn.counters[TLS_RESUMED] += c.tls.resumed()
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
    answer, fault, client = c.endpoint.upgrade(shared[:size], c.tls is not None, c.address)
    if client is not None:
        c.uncount_address()
        address_set(&c.peer, client[0], client[1], 0)
        if not c.count_address():
            return 0
    c.send(answer)
    c.websocket.framed = len(answer)           # these bytes are sent without a frame
    if not fault:
        c.websocket.ready = True
        return size
    c.turn.counters[WEBSOCKET_FAILURES] += 1
    c.flush()
    c.finish(fault)
    return 0


cdef int after_frames(Connection c) except -1:
    """After frames were decoded: send the reply to a control frame, or end the connection."""
    if c.websocket.code == 0:
        return c.flush() if c.websocket.answer_size else 0
    if c.websocket.fault is None:
        return c.close_soon(close_reasons.CLOSED_BY_CLIENT)
    if c.fault is None:
        c.turn.counters[WEBSOCKET_FAILURES] += 1
        c.protocol_error(c.websocket.fault)
    return 0
