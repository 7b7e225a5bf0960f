# A session in the store. See session_store.pyx.

from .message cimport Message


cdef class Restored:
    cdef Message* message
