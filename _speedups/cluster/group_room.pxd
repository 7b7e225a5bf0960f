# How many messages a shared subscription has room for at this node, as Redis has it. See group_room.pyx.

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from .lease_records cimport LeaseRecords
from ..session.group cimport Group
from ..session.group_members cimport Member


@cython.final
cdef class AnnouncedRoom:
    cdef Group group
    cdef LeaseRecords records
    cdef uint64_t known            # messages that Redis may lease to this node, as far as this node knows
    cdef uint64_t largest_known    # bytes of the largest packet of members here, as Redis knows it
    cdef uint64_t total            # leases to this node, as Redis has counted those that have arrived

    cdef int announce(self) except -1
    cdef int announce_member(self, Member member) except -1
    cdef int announce_limit(self, Member member, uint64_t limit, bint by_length) except -1
    cdef bint is_direct(self, Member member) except -1
    cdef uint64_t largest_of(self, Member member) noexcept
    cdef int note_given(self, Member member, uint64_t total, uint32_t count) except -1
    cdef int forget(self) except -1
