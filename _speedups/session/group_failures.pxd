# Messages of a shared subscription that were sent without success. See group_failures.pyx.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .group_settings cimport GroupSettings


@cython.final
cdef class Failures:
    cdef dict by_place             # place -> (deliveries, last reason code, client id); None = no message came back
    cdef list dead                 # Held: dead letters, to be published at the end of the turn; None = there are none

    cdef int note(self, uint64_t place, uint8_t code, bytes client_id) except -1
    cdef int restore(self, uint64_t place, uint64_t failures) except -1
    cdef int forget(self, uint64_t place) except -1
    cdef int forget_others(self, set places) except -1
    cdef uint32_t count(self, uint64_t place) except? 0
    cdef tuple of(self, uint64_t place)
    cdef bytes last_client(self, uint64_t place)
    cdef bint are_too_many(self, uint64_t place, GroupSettings settings) except -1
    cdef int put_dead(self, object held) except -1
