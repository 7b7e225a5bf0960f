# The growable array of C: items, count and capacity.

from cpython.mem cimport PyMem_Realloc
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


cdef inline int array_reserve_tight(void** items, uint32_t count, size_t size) noexcept:
    """Ensure room for one more item after `count`, in one of numerous small arrays; -1: out of memory.

    Such an array has room for as many items as the next power of two, so it needs no field for that. Its memory is
    Python's, which has no header: the owner frees it with PyMem_Free.
    """
    cdef void* grown
    if count & (count - 1):
        return 0
    grown = PyMem_Realloc(items[0], (count * 2 if count else 1) * size)
    if grown == NULL:
        return -1
    items[0] = grown
    return 0
