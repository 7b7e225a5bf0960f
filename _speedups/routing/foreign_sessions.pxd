# Persistent sessions at other nodes, and routes of these nodes. See foreign_sessions.pyx.

from libc.stdint cimport int64_t

from ..session.turn cimport Turn
from .foreign cimport ForeignTable
from .foreign_receivers cimport ForeignReceivers
from .subscriptions cimport SubscriptionTree


cdef class ForeignSessions:
    cdef Turn turn
    cdef SubscriptionTree tree
    cdef ForeignTable table
    cdef readonly ForeignReceivers receivers
    cdef bint closed                   # there are no new records

    cdef bint fits(self, bytes topic_filter) except -1
    cdef int changed(self, bytes topic_filter) except -1
    cdef int count_routes(self, int64_t n) noexcept
    cdef int count_sessions(self, bytes client_id, int n) except -1
    cdef int count(self, bytes client_id, bytes topic_filter, int n) except -1
