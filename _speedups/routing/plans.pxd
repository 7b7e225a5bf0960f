# From topic names to receivers: the delivery plans, and the tree from which they are made. See plans.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ..base.buffers cimport Buffer, Pool
from ..session.subscriber cimport Plan, Receiver
from .foreign_receivers cimport ForeignReceivers
from .topic_tree cimport Node, TopicTree

cdef enum:
    PLAN_SLOTS = 8192          # delivery plans kept, by hash of the topic name: a power of two
    PLAN_MAX = 65536          # receivers in a cached plan; larger plans are made each time
    PLAN_TOPIC_MAX = 1024     # bytes of the topic name of a cached plan
    PLANS_MAX = 2000000       # receivers in all cached plans; past it all are dropped

# One end of a subscription; the other is Subscription in session/subscriber.pxd.
cdef struct SubscriptionEntry:
    void* subscriber           # a Subscriber, not owned: it unsubscribes before it is freed
    uint32_t position          # of the Subscription in the subscriber's array
    uint32_t options           # bits 0 to 3: SubscriptionOptions; the others: subscription identifier, 0 = none

cdef enum SubscriptionOptions:         # [5: 3.8.3.1]
    MAXIMUM_QOS = 3
    NO_LOCAL = 4
    KEEPS_RETAIN = 8                   # Retain As Published
    STORED_OPTIONS = 15                # Retain Handling counts only when a client subscribes
    IDENTIFIER_SHIFT = 4

# A matching subscription with No Local or with an identifier: such subscribers are completed after the match.
cdef struct SpecialMatch:
    void* subscriber
    uint32_t identifier
    uint8_t options


cdef uint64_t prefix_hash(const uint8_t* p, Py_ssize_t n) noexcept nogil


cdef class Plans(TopicTree):
    cdef Plan** plans          # PLAN_SLOTS, each NULL or a plan for a topic name with that hash
    cdef uint32_t[PLAN_SLOTS] tags     # of the topic names last looked up
    cdef uint64_t kept         # receivers in all cached plans
    cdef SpecialMatch* specials        # of the match
    cdef Py_ssize_t special_count, special_capacity
    cdef Buffer identifiers    # of the plan being made ...
    cdef Py_ssize_t last_identifiers   # ... and where the last set begins
    cdef Pool pool
    cdef Plan scratch          # the plan being made ...
    cdef const uint8_t* topic  # ... and the topic name it is for
    cdef Py_ssize_t topic_length
    cdef Node** frontier       # nodes reached at a level, while matching
    cdef Node** beyond         # nodes reached at the next
    cdef Py_ssize_t frontier_capacity, beyond_capacity, receiver_capacity
    cdef readonly uint64_t generation
    cdef bint by_shard         # receivers stand in the order of their shards
    cdef ForeignReceivers foreign      # of sessions and nodes whose filters are not in the tree; None = there are none

    cdef Plan* known(self, const uint8_t* topic, Py_ssize_t n, uint64_t* h) noexcept
    cdef Plan* known_below(self, const uint8_t* prefix, Py_ssize_t size, uint64_t prefix_part, const uint8_t* name,
                           Py_ssize_t n, uint64_t* h) noexcept
    cdef Plan* plan(self, const uint8_t* topic, Py_ssize_t n, uint64_t h) except NULL
    cdef int forget(self, const uint8_t* path, Py_ssize_t n) except -1
    cdef int match(self, const uint8_t* topic, Py_ssize_t n) except -1
    cdef int collect(self, Node* node) except -1
    cdef int collect_foreign(self, const uint8_t* topic, Py_ssize_t n) except -1
    cdef int complete(self) except -1
    cdef int complete_one(self, SpecialMatch* matches, Py_ssize_t n) except -1
    cdef int add_identifiers(self, Receiver* receiver, SpecialMatch* matches, Py_ssize_t n, uint8_t without) except -1
    cdef int widen(self, Py_ssize_t n) except -1
