# An application message with more than one holder: queues, windows, the retained tree, wills.
# One allocation, counted references, immutable. QoS 0 deliveries never create one. Python's allocator has the memory:
# for small blocks that come and go by the thousand it takes a fraction of the time of malloc.

from cpython.mem cimport PyObject_Free, PyObject_Malloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..base.tick cimport TICKS_PER_SECOND
from ..codec.tenants cimport tenant_size

cdef struct Message:
    uint32_t refs              # holders; the last one to release frees
    uint32_t payload_length
    uint64_t stored_id         # its name in the store of a node alone, 0 = never stored; in a cluster twice 32 bits:
                               # its place in the block, plus 1, for queues of QoS 1 and of QoS 2: 0 = it has none
    int64_t expires            # time of the turn's clock at which it expires; 0 = never
    uint32_t stored_epoch      # the compaction that last wrote its bytes; in a cluster the block of the places
    uint32_t properties_length # bytes of its property block, without Topic Alias and Message Expiry Interval
    uint16_t topic_length
    uint8_t qos                # as published
    uint8_t retain             # RETAIN as published
    uint16_t trace             # as in Publication
    uint8_t data[1]            # topic name, properties, payload


# A message in the router: on the stack of the function that accepted it, borrowed by all that receive it. It has 128
# bytes: gcc clears a larger one with an instruction that alone takes a quarter of the time of a message.
cdef struct Publication:
    const uint8_t* topic       # a valid topic name
    const uint8_t* properties  # its property block, checked, without Topic Alias and Message Expiry Interval
    const uint8_t* payload
    Py_ssize_t topic_length
    Py_ssize_t properties_length
    Py_ssize_t payload_length
    int64_t expires            # time of the turn's clock at which it expires; 0 = never
    const uint8_t* packet      # as clients get it: a QoS 0 packet of level 4 in its shortest encoding, without flags;
                               # NULL = to be encoded
    const uint8_t* packet_5    # likewise of level 5, without subscription identifiers
    uint32_t packet_size
    uint32_t packet_5_size
    Message* message           # the same as an object, not owned; NULL until a queue or the retained tree needs one
    void* plan                 # if `looked_up`: the Plan of the topic name, perhaps stale, or NULL ...
    uint64_t topic_hash        # ... and the hash of the name
    void* tenant               # borrowed: the Tenant of its name; NULL: it has none, or it is not looked up yet
    void* publisher            # borrowed: the publisher's Session, or client id if it is at another node, or None
    uint64_t will              # the number by which the store has it as a will; 0 = it is none
    uint64_t number            # of a message that awaited PUBREL, in a cluster with several shards; 0 = it has none
    uint32_t progress          # 0, or a node that has ended gave it to all receivers but the persistent sessions
                               # whose client ids have a hash from here on
    uint16_t hidden            # bytes of the topic name that its clients don't see: the prefix of a tenant
    uint16_t packet_id         # of a QoS 2 message that the store has as awaiting PUBREL; 0 = it has not
    uint16_t trace             # how the node's SpanRecorder knows it; 0 = by its properties, or not at all
    uint8_t shard              # of the record that ends with the publication
    uint8_t qos                # as published: 0, 1 or 2
    uint8_t retain             # RETAIN as published
    uint8_t dup                # DUP as published: 0 or 8
    uint8_t forwarded          # accepted by another node: delivered to clients here, not forwarded again
    uint8_t invalid_payload    # its properties say that the payload is UTF-8, and it is not
    uint8_t divisible          # the store may get it in several blocks: if this node ends, its publisher goes on
    uint8_t looked_up          # the topic name was looked up: no filter may change before it is routed


cdef inline Publication publication_named(const uint8_t* topic, Py_ssize_t topic_length, const uint8_t* payload,
                                          Py_ssize_t payload_length, uint8_t qos, bint retain) noexcept nogil:
    """A publication without publisher, properties, packets and message, of a topic name without a prefix."""
    cdef Publication publication
    publication.topic = topic
    publication.topic_length = topic_length
    publication.payload = payload
    publication.payload_length = payload_length
    publication.qos = qos
    publication.retain = retain
    # One by one: the compiler clears them in place, and a call of memset would cost as much as the rest.
    publication.properties = publication.packet = publication.packet_5 = NULL
    publication.properties_length = publication.expires = 0
    publication.packet_size = publication.packet_5_size = 0
    publication.message = NULL
    publication.tenant = publication.publisher = publication.plan = NULL
    publication.will = publication.topic_hash = publication.number = 0
    publication.progress = publication.hidden = publication.packet_id = publication.trace = 0
    publication.shard = 0
    publication.dup = publication.forwarded = publication.invalid_payload = 0
    publication.divisible = publication.looked_up = 0
    return publication


cdef inline Publication publication_of(const uint8_t* topic, Py_ssize_t topic_length, const uint8_t* payload,
                                       Py_ssize_t payload_length, uint8_t qos, bint retain) noexcept nogil:
    """As `publication_named`, but the topic name may have the prefix of a tenant."""
    cdef Publication publication = publication_named(topic, topic_length, payload, payload_length, qos, retain)
    publication.hidden = <uint16_t>tenant_size(topic, topic_length)
    return publication


cdef inline Publication publication_of_message(Message* m) noexcept nogil:
    """The publication of a message, which lives longer."""
    cdef Publication publication = publication_of(m.data, m.topic_length, message_payload(m), m.payload_length, m.qos,
                                                  m.retain)
    publication.properties = m.data + m.topic_length
    publication.properties_length = m.properties_length
    publication.expires = m.expires
    publication.trace = m.trace
    publication.message = m
    return publication


cdef inline Message* message_new(const Publication* publication) noexcept:
    """A message with one reference, the caller's. NULL: out of memory."""
    cdef Message* m = <Message*>PyObject_Malloc(sizeof(Message) + publication.topic_length
                                                + publication.properties_length + publication.payload_length)
    cdef uint8_t* p
    if m == NULL:
        return NULL
    m.refs = 1
    m.stored_id = 0
    m.stored_epoch = 0
    m.expires = publication.expires
    m.topic_length = <uint16_t>publication.topic_length
    m.properties_length = <uint32_t>publication.properties_length
    m.payload_length = <uint32_t>publication.payload_length
    m.qos = publication.qos
    m.trace = publication.trace
    m.retain = publication.retain
    memcpy(m.data, publication.topic, publication.topic_length)
    p = m.data + publication.topic_length
    if publication.properties_length:
        memcpy(p, publication.properties, publication.properties_length)
        p += publication.properties_length
    if publication.payload_length:
        memcpy(p, publication.payload, publication.payload_length)
    return m


cdef inline Message* message_hold(Message* m) noexcept nogil:
    m.refs += 1
    return m


cdef inline void message_release(Message* m) noexcept:
    m.refs -= 1
    if m.refs == 0:
        PyObject_Free(m)


cdef inline const uint8_t* message_properties(const Message* m) noexcept nogil:
    return m.data + m.topic_length


cdef inline const uint8_t* message_payload(const Message* m) noexcept nogil:
    return m.data + m.topic_length + m.properties_length


cdef inline int64_t message_size(const Message* m) noexcept nogil:
    """Bytes of topic name, properties and payload, as limits and metrics count them."""
    return <int64_t>m.topic_length + m.properties_length + m.payload_length


cdef inline uint32_t seconds_left(int64_t expires, int64_t clock) noexcept nogil:
    """The Message Expiry Interval to send: the interval received, less the time waited [5: MQTT-3.3.2-6].

    A deadline has one tick more than the interval, and another after a restart: neither may be passed on.
    At least 1: a message whose delivery has begun does not expire at its receiver.
    """
    return <uint32_t>((expires - clock + 1) // TICKS_PER_SECOND) if expires > clock + 2 else 1


cdef inline int64_t expiry_after(uint32_t seconds, int64_t clock) noexcept nogil:
    """The time at which a message expires that was accepted at `clock`: not before the interval is over."""
    return clock + <int64_t>seconds * TICKS_PER_SECOND + 1
