# A chunk of a transaction: messages one behind the other, as the store has them until they are published. Inline.
#
# A message is QoS | RETAIN << 2 u8, bytes of the topic name u16, of the properties u32, of the payload u32, in
# little-endian order; topic name, properties, payload. The topic name has the prefix of its tenant.

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from ..codec.publish cimport is_transaction
from ..codec.tenants cimport tenant_size
from ..session.message cimport Publication, publication_of

cdef enum:
    ROW_HEAD = 11              # bytes before the topic name


cdef inline bint is_chunk(const uint8_t* topic, Py_ssize_t n) noexcept nogil:
    """Whether a message of the store is a chunk of a transaction."""
    cdef Py_ssize_t hidden
    if n == 0 or topic[0] != c'$':
        return False
    hidden = tenant_size(topic, n)
    return is_transaction(topic + hidden, n - hidden)


cdef inline Py_ssize_t row_size(const Publication* publication) noexcept nogil:
    """Bytes of a message in a chunk."""
    return ROW_HEAD + publication.topic_length + publication.properties_length + publication.payload_length


cdef inline uint8_t* write_row(uint8_t* p, const Publication* publication) noexcept nogil:
    """Write a message at `p`; returns the place behind it."""
    cdef uint16_t topic = <uint16_t>publication.topic_length
    cdef uint32_t properties = <uint32_t>publication.properties_length
    cdef uint32_t payload = <uint32_t>publication.payload_length
    p[0] = publication.qos | (4 if publication.retain else 0)
    memcpy(p + 1, &topic, 2)
    memcpy(p + 3, &properties, 4)
    memcpy(p + 7, &payload, 4)
    p += ROW_HEAD
    memcpy(p, publication.topic, topic)
    p += topic
    if properties:
        memcpy(p, publication.properties, properties)
        p += properties
    memcpy(p, publication.payload, payload)
    return p + payload


cdef inline const uint8_t* read_row(const uint8_t* p, const uint8_t* end, Publication* publication) noexcept nogil:
    """The message at `p`, which its publication refers to; returns the place behind it. NULL: there is none."""
    cdef uint16_t topic
    cdef uint32_t properties, payload
    if end - p < ROW_HEAD:
        return NULL
    memcpy(&topic, p + 1, 2)
    memcpy(&properties, p + 3, 4)
    memcpy(&payload, p + 7, 4)
    if p[0] & 3 == 3 or topic == 0 or end - p - ROW_HEAD < <Py_ssize_t>topic + properties + payload:
        return NULL
    publication[0] = publication_of(p + ROW_HEAD, topic, p + ROW_HEAD + topic + properties, payload, p[0] & 3,
                                    p[0] >> 2)
    publication.properties = p + ROW_HEAD + topic
    publication.properties_length = properties
    return publication.payload + payload
