# Persistent sessions at other nodes, and routes of these nodes. See foreign_sessions.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..session.subscriber cimport Subscriber
from ..session.turn cimport Turn
from .foreign cimport ForeignTable
from .foreign_receivers cimport ForeignReceivers
from .subscriptions cimport SubscriptionTree


cdef class ForeignSessions:
    cdef Turn turn
    cdef SubscriptionTree tree
    cdef ForeignTable table
    cdef readonly ForeignReceivers receivers
    cdef dict known_options            # text of options and identifier -> both
    cdef bint closed                   # there are no new records ...
    cdef int moved                     # ... and none in so many segments of the table

    cpdef bint subscribe(self, bytes client_id, uint64_t incarnation, bytes topic_filter, uint8_t options,
                         uint32_t identifier) except -1
    cpdef int route(self, Subscriber node, bytes topic_filter, uint8_t options) except -1
    cdef tuple parsed(self, bytes stored)
    cdef bint fits(self, bytes topic_filter) except -1
    cdef int changed(self, bytes topic_filter) except -1
    cdef int count_routes(self, int64_t n) noexcept
    cdef int count_sessions(self, bytes client_id, int n) except -1
    cdef int count(self, bytes client_id, bytes topic_filter, int n) except -1
