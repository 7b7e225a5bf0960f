# The few MQTT 3.1.1 bytes a load generator writes, and the clock: inline helpers for the no-GIL loops of this package.
# Every `put_` function writes at `at` and returns the place behind what it wrote; the caller sees to the room.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef enum:
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


cdef inline uint64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t> now.tv_sec * 1000000000 + <uint64_t> now.tv_nsec


cdef inline uint8_t *put_uint16(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 8)
    at[1] = <uint8_t> value
    return at + 2


cdef inline uint32_t get_uint16(const uint8_t *at) noexcept nogil:
    return (<uint32_t> at[0] << 8) | at[1]


cdef inline uint8_t *put_length(uint8_t *at, uint32_t value) noexcept nogil:
    # A remaining length: seven bits a byte, the lowest first.
    while value > 127:
        at[0] = <uint8_t> (value | 128)
        at += 1
        value >>= 7
    at[0] = <uint8_t> value
    return at + 1


cdef inline uint8_t *put_bytes(uint8_t *at, const void *data, size_t size) noexcept nogil:
    memcpy(at, data, size)
    return at + size


cdef inline uint8_t *put_decimal(uint8_t *at, uint32_t value) noexcept nogil:
    cdef uint8_t digits[10]
    cdef int count = 0
    while True:
        digits[count] = <uint8_t> (48 + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef inline int get_frame(const uint8_t *at, const uint8_t *end, uint32_t *header, uint32_t *body) noexcept nogil:
    # 1 and the sizes of fixed header and body; 0 while the frame is incomplete; -1 when its length is malformed.
    cdef uint32_t value = 0
    cdef uint32_t shift = 0
    cdef uint8_t byte
    cdef const uint8_t *next = at + 1
    while next < end:
        byte = next[0]
        next += 1
        value |= <uint32_t> (byte & 127) << shift
        if byte < 128:
            header[0] = <uint32_t> (next - at)
            body[0] = value
            return 1 if value <= <size_t> (end - next) else 0
        shift += 7
        if shift > 21:
            return -1
    return 0
