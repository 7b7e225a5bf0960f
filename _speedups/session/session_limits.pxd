# The messages of a session's queue that are dropped. See session_limits.pyx.

from .session_queue cimport QueueLimits, SessionQueue

cdef bint is_over(SessionQueue session, const QueueLimits* limits, Py_ssize_t size) noexcept
cdef bint drop_expired(SessionQueue session) except -1
cdef bint drop_one(SessionQueue session) except -1
cdef bint is_too_long(SessionQueue session) except -1
cdef int close_gaps(SessionQueue session) except -1
