# The keys of session tickets. See ticket_keys.pyx.

from .openssl cimport SSL_CTX


cdef class TicketKeyRing:
    cdef bytes keys                    # KEY_SIZE bytes each; the first one seals

    cdef int attach(self, SSL_CTX* context) except -1
