# How many messages a shared subscription has room for at this node, as Redis has it. See group_room.pyx.

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from .group_records cimport GroupRecords
from ..session.group cimport Group
from ..session.group_subscriber cimport GroupSubscriber


@cython.final
cdef class AnnouncedRoom:
    cdef Group group
    cdef GroupRecords records
    cdef uint64_t known            # messages that Redis may assignment to this node, as far as this node knows
    cdef uint64_t largest_known    # bytes of the largest packet of subscribers here, as Redis knows it
    cdef uint64_t total            # assignments to this node, as Redis has counted those that have arrived

    cdef int announce(self) except -1
    cdef int announce_subscriber(self, GroupSubscriber subscriber) except -1
    cdef int announce_limit(self, GroupSubscriber subscriber, uint64_t limit, bint by_length) except -1
    cdef bint is_direct(self, GroupSubscriber subscriber) except -1
    cdef uint64_t largest_of(self, GroupSubscriber subscriber) noexcept
    cdef int note_given(self, GroupSubscriber subscriber, uint64_t total, uint32_t count) except -1
    cdef int forget(self) except -1
