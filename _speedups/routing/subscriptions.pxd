# The subscriptions of a node. See subscriptions.pyx.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ..session.group cimport Group
from ..session.group_subscriber cimport GroupSubscriber
from ..session.subscriber cimport Subscriber
from ..session.turn cimport Turn
from .plans cimport Plans
from .topic_tree cimport Node

cdef enum:
    SLICE = 500                # subscriptions that are removed at once

cdef bytes path_of(const Node* node)


cdef class SubscriptionTree(Plans):
    cdef readonly uint64_t count       # subscriptions of sessions
    cdef readonly uint64_t changes     # subscriptions that were added, replaced or removed
    cdef dict by_name          # Group by its name
    cdef list leaving          # (subscriber, function) that have ended: their subscriptions are removed in slices ...
    cdef object later          # ... by this function, which calls another one in a later turn; None: at once
    cdef object backing_type   # of groups: GroupJournal, or GroupAssignments in a cluster
    cdef uint64_t last_group   # number of the newest

    cdef GroupSubscriber shared_of(self, Subscriber subscriber, bytes name)
    cdef Group group(self, Turn turn, bytes name)
    cdef int end_group(self, Group group) except -1
    cdef int set_qos(self, Group group) except -1
    cdef int end_if_empty(self, Group group) except -1
    cdef int leave(self, GroupSubscriber shared, bint session_ends) except -1
    cdef int remove_slice(self, Subscriber subscriber, removed) except -1
    cdef uint8_t options_of(self, Subscriber subscriber, uint32_t position) noexcept
    cdef Py_ssize_t find(self, Subscriber subscriber, Node* node) noexcept
    cdef int count_held(self, Subscriber subscriber, int64_t n) except -1
    cdef int cancel(self, Subscriber subscriber, uint32_t position) except -1
