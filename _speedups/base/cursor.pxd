# Checked reads between two pointers, and the few fixed-size writes of the wire format.
#
# Rules: no Python objects and no GIL, so a loop over frames may call all functions here. A reader returns 0, or -1 if
# the bytes end too early; after -1 neither the cursor nor the result has changed. The caller keeps the memory alive,
# a cursor owns nothing. The caller of a writer ensures room.

from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef enum:
    VARINT_BYTES_MAX = 4             # bytes of a variable byte integer on the wire
    VARINT_MAX = 268_435_455         # its largest value: the largest Remaining Length, bytes

cdef struct Cursor:
    const uint8_t* p                 # next byte to read; borrowed
    const uint8_t* end               # one past the last byte; borrowed


cdef inline int read_u8(Cursor* c, uint8_t* value) noexcept nogil:
    """One byte into `value`. Returns 0, or -1 if there is none."""
    if c.end - c.p < 1:
        return -1
    value[0] = c.p[0]
    c.p += 1
    return 0


cdef inline int read_u16(Cursor* c, uint16_t* value) noexcept nogil:
    """Two bytes, most significant first, into `value`. Returns 0, or -1 if they are not all there."""
    if c.end - c.p < 2:
        return -1
    value[0] = <uint16_t>((c.p[0] << 8) | c.p[1])
    c.p += 2
    return 0


cdef inline int read_u32(Cursor* c, uint32_t* value) noexcept nogil:
    """Four bytes, most significant first, into `value`. Returns 0, or -1 if they are not all there."""
    if c.end - c.p < 4:
        return -1
    value[0] = (<uint32_t>c.p[0] << 24) | (<uint32_t>c.p[1] << 16) | (<uint32_t>c.p[2] << 8) | c.p[3]
    c.p += 4
    return 0


cdef inline int read_field(Cursor* c, const uint8_t** at, Py_ssize_t* n) noexcept nogil:
    """A two-byte length, then that many bytes: `at` points at them, `n` is their number.

    Returns 0, or -1 if they are not all there. `at` borrows from the cursor's memory.
    """
    cdef Py_ssize_t size
    if c.end - c.p < 2:
        return -1
    size = (c.p[0] << 8) | c.p[1]
    if c.end - c.p - 2 < size:
        return -1
    at[0] = c.p + 2
    n[0] = size
    c.p += 2 + size
    return 0


cdef inline int read_varint(Cursor* c, uint32_t* value) noexcept nogil:
    """A variable byte integer of one to four bytes into `value`.

    Returns 0, or -1 if the bytes end early or the fourth still announces a fifth. A longer form than needed
    passes, since only level 5 forbids it [5: MQTT-1.5.5-1]: compare the bytes consumed with `varint_size(value)`.
    """
    cdef const uint8_t* p = c.p
    cdef uint32_t result = 0
    cdef uint8_t byte
    cdef int shift = 0
    while shift < 7 * VARINT_BYTES_MAX:
        if p >= c.end:
            return -1
        byte = p[0]
        p += 1
        result |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            c.p = p
            return 0
        shift += 7
    return -1


cdef inline int varint_size(uint32_t value) noexcept nogil:
    """Bytes that `value` (at most VARINT_MAX) takes as a variable byte integer: 1 to 4."""
    return 1 + (value > 127) + (value > 16_383) + (value > 2_097_151)


cdef inline int write_varint(uint8_t* p, uint32_t value) noexcept nogil:
    """Write `value` (at most VARINT_MAX) at `p` in its shortest form; returns the bytes written, 1 to 4."""
    cdef int n = 0
    while value > 0x7F:
        p[n] = <uint8_t>(value | 0x80)
        value >>= 7
        n += 1
    p[n] = <uint8_t>value
    return n + 1


cdef inline void write_u16(uint8_t* p, uint16_t value) noexcept nogil:
    """Write two bytes at `p`, most significant first."""
    p[0] = <uint8_t>(value >> 8)
    p[1] = <uint8_t>value


cdef inline int read_header(Cursor* c, uint8_t* first_byte, uint32_t* remaining) noexcept nogil:
    """The fixed header of a frame: packet type and flags, then the Remaining Length in bytes.

    Returns 1, 0 if more bytes are needed, or -1 if a fifth length byte is announced [2.2.3].
    """
    cdef Cursor ahead = c[0]
    if read_u8(&ahead, first_byte) == -1:
        return 0
    if read_varint(&ahead, remaining) == -1:
        return -1 if ahead.end - ahead.p >= VARINT_BYTES_MAX else 0
    c[0] = ahead
    return 1
