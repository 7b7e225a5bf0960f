# The growable array of C: items, count and capacity.

from libc.stdint cimport uint32_t
from libc.stdlib cimport realloc

cdef enum:
    FIRST_ROOM = 16            # items


cdef inline int array_reserve(void** items, Py_ssize_t wanted, Py_ssize_t* capacity, size_t size) noexcept nogil:
    """Ensure room for `wanted` items of `size` bytes; it grows twofold. -1: out of memory, and nothing has changed."""
    cdef Py_ssize_t room = capacity[0]
    cdef void* grown
    if wanted <= room:
        return 0
    room = max(wanted, room * 2, <Py_ssize_t>FIRST_ROOM)
    grown = realloc(items[0], room * size)
    if grown == NULL:
        return -1
    items[0] = grown
    capacity[0] = room
    return 0


cdef inline int array_reserve_tight(void** items, uint32_t wanted, uint32_t* capacity, size_t size) noexcept nogil:
    """The same for numerous small arrays: they begin with one item and grow by half."""
    cdef uint32_t room = capacity[0] + (capacity[0] >> 1) + 1
    cdef void* grown
    if wanted <= capacity[0]:
        return 0
    grown = realloc(items[0], room * size)
    if grown == NULL:
        return -1
    items[0] = grown
    capacity[0] = room
    return 0
