# The few MQTT bytes that a load generator writes, and the clock: inline helpers for loops without the GIL.
# A `put_` function writes at `p` and returns the place behind; the caller provides the room.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from ..._speedups.base.cursor cimport Cursor, read_header, write_u16, write_varint


cdef inline uint64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef inline uint8_t* put_uint16(uint8_t* p, uint32_t value) noexcept nogil:
    write_u16(p, <uint16_t>value)
    return p + 2


cdef inline uint32_t get_uint16(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 8) | p[1]


cdef inline uint8_t* put_length(uint8_t* p, uint32_t value) noexcept nogil:
    """A Remaining Length."""
    return p + write_varint(p, value)


cdef inline uint8_t* put_bytes(uint8_t* p, const void* data, size_t size) noexcept nogil:
    memcpy(p, data, size)
    return p + size


cdef inline uint8_t* put_decimal(uint8_t* p, uint32_t value) noexcept nogil:
    cdef uint8_t[10] digits
    cdef int count = 0
    while True:
        digits[count] = <uint8_t>(48 + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    while count:
        count -= 1
        p[0] = digits[count]
        p += 1
    return p


cdef inline int get_frame(const uint8_t* p, const uint8_t* end, uint32_t* header, uint32_t* body) noexcept nogil:
    """The sizes of fixed header and rest. Returns 1, 0 if the frame is incomplete, or -1 if its length is malformed."""
    cdef Cursor cursor
    cdef uint8_t first_byte
    cdef int result
    cursor.p = p
    cursor.end = end
    result = read_header(&cursor, &first_byte, body)
    if result != 1:
        return result
    header[0] = <uint32_t>(cursor.p - p)
    return 1 if body[0] <= <size_t>(end - cursor.p) else 0
