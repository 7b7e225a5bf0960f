# A session in the store. See session_store.pyx.

from .message cimport Message
from .session_queue cimport SessionQueue

cdef class SessionStore(SessionQueue):
    cdef public object user            # bytes: the verified user that owns the session; None = no user


cdef class Restored:
    cdef Message* message
