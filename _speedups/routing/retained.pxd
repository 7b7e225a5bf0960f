# Retained messages by topic name, and the search that a new subscription makes. See retained.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..session.message cimport Message
from ..session.session cimport Session, MessageSource
from ..session.tenant cimport Tenant
from .topic_tree cimport Node, TopicTree


# A node's value is a Message; the node owns one reference. `size` is of the messages and the nodes.
cdef class RetainedTree(TopicTree):
    cdef readonly uint64_t count       # messages
    # A heap of (time, topic name): each message that expires has a note with that time or an earlier one.
    cdef list expiring
    cdef readonly uint64_t max_messages          # messages that may be kept
    cdef readonly uint64_t max_bytes     # bytes that may be kept

    cdef bint fits(self, Tenant tenant, int64_t size) noexcept
    cdef int count_message(self, const Message* message, int n) except -1
    cdef bint has_room(self, Message* message) except -1
    cdef int put(self, Message* message, bint always=*) except -1
    cdef int expect(self, int64_t expires, bytes topic) except -1
    cdef int64_t expiry_of(self, bytes topic) except -1
    cdef bytes take_expired(self, int64_t clock)
    cdef int remove(self, const uint8_t* topic, Py_ssize_t n) except -1


cdef class RetainedSearch(MessageSource):
    cdef RetainedTree tree
    cdef bytes topic_filter
    cdef list levels                   # of the filter: bytes
    cdef Py_ssize_t filter_depth         # levels, without the '#'
    cdef Py_ssize_t own_depth          # of the first level that a tenant's clients see; 0: the filter is no tenant's
    cdef bint all_below                # the filter ends in '#'
    cdef uint8_t qos                   # granted
    cdef bytes identifiers             # the subscription identifier, as a property; empty = none
    cdef Node* at                      # pinned; NULL when the search is over
    cdef Py_ssize_t depth              # of `at`

    cdef int step(self) except -1
    cdef bint wild_at(self, Py_ssize_t depth)
    cdef Node* beside(self, Node* node, Py_ssize_t* depth)
    cdef Message* found(self) noexcept
    cdef int stand(self, Node* node, Py_ssize_t depth) except -1
