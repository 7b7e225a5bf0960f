# WebSocket frames, decoded and encoded in place. See websocket.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint64_t

cdef enum:
    HEAD_MAX = 14             # bytes of a frame before its payload
    CONTROL_MAX = 125         # bytes of payload of a control frame
    PREFIX_MAX = 153          # bytes: a control frame and the head of the next frame, twice a head to spare

# Opcodes [RFC 6455, 5.2].
cdef enum:
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10

# Status codes of a close [RFC 6455, 7.4.1].
cdef enum:
    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003


cdef class WebSocket:
    cdef bint client                   # this end is the client, which masks
    cdef bint ready                    # the HTTP request was answered
    # Received.
    cdef uint8_t head[HEAD_MAX]       # of a frame whose head is incomplete
    cdef uint8_t head_size
    cdef uint8_t opcode                # of the frame whose payload is being received
    cdef uint64_t left                 # bytes of it not yet received
    cdef uint8_t mask[8]               # the four bytes twice; the first is for the next byte
    cdef bint inside                   # within a frame's payload
    cdef bint fragmented               # the message continues in another frame
    cdef uint8_t control[CONTROL_MAX]
    cdef uint8_t control_size
    cdef readonly uint16_t code        # status code of the close; 0 = open
    cdef readonly str fault            # the reason as text; None if the other end just closes
    # Sent.
    cdef uint8_t answer[CONTROL_MAX + 6]  # a control frame that waits for the end of the frame that is being sent
    cdef uint8_t answer_size
    cdef uint8_t prefix[PREFIX_MAX]   # bytes to send before the next bytes of payload
    cdef uint8_t prefix_start, prefix_end
    cdef Py_ssize_t framed             # unsent bytes of payload that the last head announced

    cdef Py_ssize_t decode(self, uint8_t* data, Py_ssize_t n) except -1
    cdef int begin(self, const uint8_t* head) except -1
    cdef int finish(self) except -1
    cdef int refuse(self, int code, str fault) except -1
    cdef int reply(self, int opcode, const uint8_t* payload, Py_ssize_t n) noexcept
    cdef int close(self, int code) noexcept
    cdef bint owes(self) noexcept
    cdef int frame(self, Py_ssize_t size) noexcept
    cdef Py_ssize_t sent(self, Py_ssize_t n) noexcept
