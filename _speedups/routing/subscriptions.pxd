# Maps topic names to receivers: the subscription tree and the delivery plans made from it. See subscriptions.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from _speedups.session.subscriber cimport Plan, Subscriber
from _speedups.routing.topic_tree cimport Node

cdef enum:
    PLAN_SLOTS = 8192          # delivery plans kept, by hash of the topic name: a power of two
    PLAN_MAX = 65536          # receivers in a cached plan; larger plans are made each time
    PLAN_TOPIC_MAX = 1024     # bytes of the topic name of a cached plan
    PLANS_MAX = 2000000       # receivers in all cached plans; past it all are dropped

# One end of a subscription; the other is Subscription in session/subscriber.pxd.
cdef struct SubscriptionEntry:
    void* subscriber           # a Subscriber, not owned: it unsubscribes before it is freed
    uint32_t position          # of the Subscription in the subscriber's array
    uint8_t options            # bits 0, 1: QoS


cdef class SubscriptionTree:
    cdef Node* root
    cdef Plan** plans          # PLAN_SLOTS, each NULL or a plan for a topic name with that hash
    cdef uint32_t[PLAN_SLOTS] tags     # of the topic names last looked up
    cdef uint64_t kept         # receivers in all cached plans
    cdef Plan scratch          # the plan being made ...
    cdef const uint8_t* topic  # ... and the topic name it is for
    cdef Py_ssize_t topic_length
    cdef Node** frontier       # nodes reached at a level, while matching
    cdef Node** beyond         # nodes reached at the next
    cdef Py_ssize_t frontier_capacity, beyond_capacity, receiver_capacity
    cdef readonly uint64_t generation
    cdef uint64_t mark         # marks the sessions already in the plan being made
    cdef readonly uint64_t count       # subscriptions

    cdef Plan* known(self, const uint8_t* topic, Py_ssize_t n, uint64_t* h) noexcept
    cdef Plan* plan(self, const uint8_t* topic, Py_ssize_t n, uint64_t h) except NULL
    cdef int match(self, const uint8_t* topic, Py_ssize_t n) except -1
    cdef int collect(self, Node* node) except -1
    cdef int forget(self, const uint8_t* path, Py_ssize_t n) except -1
    cdef Py_ssize_t find(self, Subscriber subscriber, Node* node) noexcept
    cdef int widen(self, Py_ssize_t n) except -1
    cdef int cancel(self, Subscriber subscriber, uint32_t position) except -1
