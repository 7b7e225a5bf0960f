# Sets of subscription identifiers in the queue of a session. See subscription_identifiers.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint64_t

from .outgoing_queue cimport OutgoingQueue

cdef uint16_t identifier_set(OutgoingQueue* queue, uint64_t tail, const uint8_t* identifiers, Py_ssize_t n) except? 0
cdef int forget_identifier_sets(OutgoingQueue* queue) except -1
cdef list used_identifier_sets(OutgoingQueue* queue, uint64_t tail)
