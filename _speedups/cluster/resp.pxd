# The protocol of Redis, RESP3. See resp.pyx.

from libc.stdint cimport uint8_t, uint64_t

from ..session.turn cimport Outlet

cdef object read_reply(const uint8_t** at, const uint8_t* end, int depth)
cdef int put_count(Outlet out, uint64_t number) except -1
cdef int put_text(Outlet out, const uint8_t* data, Py_ssize_t n) except -1
