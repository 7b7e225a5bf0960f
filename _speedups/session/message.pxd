# An application message with more than one holder: queues, windows, the retained tree, wills.
# One allocation, counted references, immutable. QoS 0 deliveries never create one.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef struct Message:
    uint32_t refs              # holders; the last one to release frees
    uint32_t payload_length
    uint64_t stored_id         # name of this message in the store's log; 0 = never stored
    uint32_t stored_epoch      # compaction epoch in which its bytes were last written to the log
    uint16_t topic_length
    uint8_t qos                # as published
    uint8_t retain             # RETAIN as published
    uint8_t data[1]            # topic name, then payload


# A message in the router: on the stack of the function that accepted it, borrowed by all that receive it.
cdef struct Publication:
    const uint8_t* topic       # a valid topic name
    const uint8_t* payload
    Py_ssize_t topic_length
    Py_ssize_t payload_length
    Py_ssize_t packet_size
    const uint8_t* packet      # as a QoS 0 packet in its shortest encoding, without flags; NULL = to be encoded
    Message* message           # the same as an object, not owned; NULL until a queue or the retained tree needs one
    void* publisher            # borrowed: the publisher's Session, or client id if it is at another node, or None
    uint8_t qos                # as published: 0, 1 or 2
    uint8_t retain             # RETAIN as published
    uint8_t dup                # DUP as published: 0 or 8
    uint8_t forwarded          # accepted by another node: delivered to clients here, not forwarded again
    uint8_t looked_up          # `Router.check_topic` has just checked the topic name, and no filter has changed since


cdef inline Publication publication_of(const uint8_t* topic, Py_ssize_t topic_length, const uint8_t* payload,
                                       Py_ssize_t payload_length, uint8_t qos, bint retain) noexcept nogil:
    """A publication of the broker's own, without publisher, packet and message."""
    return Publication(topic, payload, topic_length, payload_length, 0, NULL, NULL, NULL, qos, retain, 0, 0, 0)


cdef inline Message* message_new(const uint8_t* topic, Py_ssize_t topic_length, const uint8_t* payload,
                                 Py_ssize_t payload_length, int qos, bint retain) noexcept nogil:
    """A message with one reference, the caller's. NULL: out of memory."""
    cdef Message* m = <Message*>malloc(sizeof(Message) + topic_length + payload_length)
    if m == NULL:
        return NULL
    m.refs = 1
    m.stored_id = 0
    m.stored_epoch = 0
    m.topic_length = <uint16_t>topic_length
    m.payload_length = <uint32_t>payload_length
    m.qos = <uint8_t>qos
    m.retain = retain
    memcpy(m.data, topic, topic_length)
    if payload_length:
        memcpy(m.data + topic_length, payload, payload_length)
    return m


cdef inline Message* message_hold(Message* m) noexcept nogil:
    m.refs += 1
    return m


cdef inline void message_release(Message* m) noexcept nogil:
    m.refs -= 1
    if m.refs == 0:
        free(m)


cdef inline const uint8_t* message_payload(const Message* m) noexcept nogil:
    return m.data + m.topic_length


cdef inline int64_t message_size(const Message* m) noexcept nogil:
    """Bytes of topic name and payload, as limits and metrics count them."""
    return <int64_t>m.topic_length + m.payload_length
