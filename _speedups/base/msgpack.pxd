# The MessagePack writer for C, for the types that nodes and Redis use: integers, texts, arrays. See msgpack.pyx.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from .buffers cimport Buffer, Pool, buffer_reserve


cdef inline uint8_t* put(Buffer* b, Pool* pool, Py_ssize_t n) except NULL:
    """Room for `n` bytes, which count as written."""
    cdef uint8_t* p = buffer_reserve(b, pool, n)
    if p == NULL:
        raise MemoryError
    b.end += n
    return p


cdef inline int put_big_endian(uint8_t* p, uint64_t value, int size) noexcept nogil:
    while size:
        size -= 1
        p[size] = <uint8_t>value
        value >>= 8
    return 0


cdef inline int put_head(Buffer* b, Pool* pool, uint64_t n, uint8_t short_form, uint64_t short_most, uint8_t form16,
                         uint8_t form32) except -1:
    cdef uint8_t* p
    if n <= short_most:
        put(b, pool, 1)[0] = short_form | <uint8_t>n
    elif n <= 0xFFFF:
        p = put(b, pool, 3)
        p[0] = form16
        put_big_endian(p + 1, n, 2)
    else:
        p = put(b, pool, 5)
        p[0] = form32
        put_big_endian(p + 1, n, 4)
    return 0


cdef inline int put_array(Buffer* b, Pool* pool, uint64_t n) except -1:
    """The head of an array; its `n` elements follow."""
    return put_head(b, pool, n, 0x90, 15, 0xDC, 0xDD)


cdef inline int put_text_head(Buffer* b, Pool* pool, uint64_t n) except -1:
    """The head of a text; its `n` bytes follow."""
    return put_head(b, pool, n, 0xA0, 31, 0xDA, 0xDB)


cdef inline int put_text(Buffer* b, Pool* pool, const uint8_t* data, Py_ssize_t n) except -1:
    put_text_head(b, pool, n)
    if n:
        memcpy(put(b, pool, n), data, n)
    return 0


cdef inline int put_number(Buffer* b, Pool* pool, uint64_t value) except -1:
    cdef uint8_t* p
    if value < 128:
        put(b, pool, 1)[0] = <uint8_t>value
    elif value <= 0xFFFF:
        p = put(b, pool, 3)
        p[0] = 0xCD
        put_big_endian(p + 1, value, 2)
    elif value <= 0xFFFFFFFF:
        p = put(b, pool, 5)
        p[0] = 0xCE
        put_big_endian(p + 1, value, 4)
    else:
        p = put(b, pool, 9)
        p[0] = 0xCF
        put_big_endian(p + 1, value, 8)
    return 0


cdef inline int put_negative(Buffer* b, Pool* pool, int64_t value) except -1:
    cdef uint8_t* p = put(b, pool, 9)
    p[0] = 0xD3
    put_big_endian(p + 1, <uint64_t>value, 8)
    return 0


cdef int put_object(Buffer* b, Pool* pool, object value) except -1
