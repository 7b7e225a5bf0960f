# The owner of subscriptions: a session, another node, the message log. See subscriber.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from ..base.buffers cimport buffer_size
from .counters cimport DROPPED_SLOW
from .message cimport Publication
from .rights cimport Rights
from .tenant cimport Tenant
from .trace cimport Tracer
from .turn cimport Outlet, Sender, Turn

cdef enum:
    FLUSH_EARLY = 262144       # bytes of output that are sent before the end of the turn, while caches are warm

cpdef enum SessionKind:
    LOCAL = 0                  # a session of this node alone
    SHARED = 1                 # a persistent session in a cluster: queue in Redis, and here while its client is
    PEER = 2                   # another node, for its sessions
    LOG = 3                    # the message log
    GROUP = 4                  # a shared subscription, for its subscribers

# One end of a subscription; the other is SubscriptionEntry in routing/plans.pxd.
cdef struct Subscription:
    void* node                 # of the topic tree
    uint32_t position          # of the SubscriptionEntry in the node's array

cdef enum ReceiverFlags:
    KEEP_RETAIN = 1            # a matching subscription has Retain As Published
    NOT_OWN = 2                # not for messages that the subscriber has published: No Local
    ONLY_OWN = 4               # only for those: it has subscriptions with No Local and without

# A subscriber that gets the messages of a topic name.
cdef struct Receiver:
    void* subscriber           # a Subscriber, not owned
    uint8_t qos                # highest of the subscriber's matching subscriptions
    uint8_t flags              # ReceiverFlags
    uint16_t identifiers_size  # bytes of the identifiers of these subscriptions, as properties ...
    uint32_t identifiers_at    # ... from this byte of the plan's `identifiers` on

# All receivers of one topic name. Valid while `generation` is the tree's.
cdef struct Plan:
    uint64_t generation
    uint32_t topic_length
    uint32_t count
    uint32_t capacity
    uint32_t log_index         # place of the topic name ...
    uint64_t log_block         # ... in this block of the message log
    uint64_t publisher         # number of the Rights that last allowed publishing to the topic; or 0
    uint64_t unbound           # number of the Turn's `bound` of which the topic is not one; or 0
    Receiver* receivers        # in the same allocation as the plan, after the topic name; or in the tree's scratch
    uint8_t* identifiers       # subscription identifiers, after the receivers; or in the tree's scratch
    uint8_t topic[1]


cdef class Subscriber(Sender):
    cdef Turn turn
    cdef readonly uint64_t session_id  # its id in the journal
    cdef readonly object client_id     # bytes; for a peer, the id of its node
    cdef readonly Rights rights        # of the client; None = may publish and read everything
    cdef Outlet outlet                 # of the live connection, or None
    # Its place in the newest list of each kind that has named it. A later list has it only if it is at that place.
    cdef uint32_t plan_index           # among the receivers of a delivery plan
    cdef uint32_t block_index          # among the sessions of a block of the cluster's journal
    cdef uint32_t log_index            # among the client ids of a block of the message log
    cdef readonly uint8_t shard        # of the cluster, that has it
    cdef uint32_t subscription_count
    cdef readonly uint32_t subscription_weight   # of the topic filters, of shared subscriptions too
    cdef Subscription* subscriptions
    cdef readonly Tenant tenant        # of its name; None = it has none

    cdef int accept(self, Publication* publication, Plan* plan, Receiver* receiver) except -1
    cdef bint recorded(self) noexcept


cdef inline int trace_delivery(Tracer tracer, str step, Subscriber subscriber, const Publication* publication, int qos,
                               str detail) except -1:
    """Trace a step of the message on its way to a subscriber; None: no single subscriber."""
    return tracer.note(step, subscriber.client_id if subscriber is not None else None, publication, qos, detail)


cdef inline bint has_room(Outlet outlet, Py_ssize_t size) except -1:
    """Whether the limit of the output allows a QoS 0 packet of this size; counts a refused packet."""
    if buffer_size(&outlet.out) + size > FLUSH_EARLY:
        if not outlet.blocked:
            outlet.flush()
        if buffer_size(&outlet.out) + size > outlet.turn.limits.max_outgoing_bytes and buffer_size(&outlet.out) > 0:
            outlet.turn.counters[DROPPED_SLOW] += 1
            if outlet.dropped == 0:
                outlet.turn.slow.append(outlet)
            outlet.dropped += 1
            return False
    return True
