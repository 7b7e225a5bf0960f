# Retained messages by topic name, and the search that a new subscription makes. See retained.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..session.message cimport Message
from ..session.session cimport Session, MessageSource
from ..session.tenant cimport Tenant, Tenants
from .branches cimport Branch, Branches, Child, Stand


cdef class RetainedTree:
    cdef Branches tree
    cdef Tenants tenants               # of the node; None: their messages are not counted
    cdef readonly uint64_t count       # messages
    cdef uint64_t message_bytes        # of all of them
    # A heap of (time, topic name): each message that expires has a note with that time or an earlier one.
    cdef list expiring
    cdef readonly uint64_t max_messages          # messages that may be kept
    cdef readonly uint64_t max_bytes     # bytes that may be kept

    cdef Message* message_of(self, const uint8_t* topic, Py_ssize_t n) noexcept
    cdef Tenant tenant_of(self, const Message* message)
    cdef bint fits(self, Tenant tenant, const Message* message) noexcept
    cdef int count_message(self, const Message* message, int n) except -1
    cdef bint has_room(self, Message* message) except -1
    cdef int put(self, Message* message, bint always=*) except -1
    cdef int expect(self, int64_t expires, bytes topic) except -1
    cdef int64_t expiry_of(self, bytes topic) except -1
    cdef bytes take_expired(self, int64_t clock)
    cdef int remove(self, const uint8_t* topic, Py_ssize_t n) except -1


cdef class RetainedSearch(MessageSource):
    cdef RetainedTree retained
    cdef bytes topic_filter
    cdef uint32_t* starts              # of its levels in the filter; one more is behind the end
    cdef Py_ssize_t filter_depth       # levels, without the '#'
    cdef Py_ssize_t own_level          # index of the first level that a tenant's clients see; 0: no tenant's filter
    cdef Py_ssize_t free_depth         # from this depth on each level fits
    cdef bint all_below                # the filter ends in '#'
    cdef uint8_t qos                   # granted
    cdef bytes identifiers             # the subscription identifier, as a property; empty = none
    cdef Stand stand
    cdef Message* found                # by the last step: it matches; valid until the tree changes

    cdef int step(self) except -1
    cdef Child choose(self, const Branch* branch, uint32_t* place) noexcept
    cdef int visit(self, Branch* branch, uint32_t place, Child child) except -1
    cdef Py_ssize_t fit(self, const uint8_t* text, Py_ssize_t n, Py_ssize_t depth) noexcept
    cdef const uint8_t* level(self, Py_ssize_t index, Py_ssize_t* n) noexcept
    cdef bint is_wild(self, Py_ssize_t index) noexcept
