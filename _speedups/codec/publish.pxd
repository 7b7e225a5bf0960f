# PUBLISH on the hot paths: its encoder, and the broker's own topic names. Inline.

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memcpy

from ..base.cursor cimport varint_size, write_u16, write_varint

cdef enum:
    FLAG_RETAIN = 1
    FLAG_DUP = 8
    PUBLISH_QOS_0 = 0x30       # first byte of a PUBLISH without flags
    FORWARD_5 = 0x00           # between nodes: first byte of a PUBLISH of level 5
    FORWARD_GROUP = 0xF0       # likewise: before a PUBLISH, the name of a shared subscription that it is for
    MESSAGE_EXPIRY_INTERVAL = 0x02     # identifier of the property
    EXPIRY_SIZE = 5            # bytes of that property
    ALIAS_SIZE = 3             # bytes of the property Topic Alias
    TOPIC_ALIAS = 0x23         # identifier of the property
    SUBSCRIPTION_IDENTIFIER = 0x0B     # identifier of the property


cdef inline uint32_t publish_remaining(Py_ssize_t topic_length, Py_ssize_t payload_length, int qos) noexcept nogil:
    """The Remaining Length of a PUBLISH without properties."""
    return <uint32_t>(2 + topic_length + payload_length + (2 if qos else 0))


cdef inline Py_ssize_t publish_size(uint32_t remaining) noexcept nogil:
    """Bytes of a whole PUBLISH with this Remaining Length."""
    return 1 + varint_size(remaining) + <Py_ssize_t>remaining


cdef inline uint8_t* write_publish(uint8_t* p, uint8_t first_byte, uint32_t remaining, const uint8_t* topic,
                                   Py_ssize_t topic_length, uint16_t packet_id, const uint8_t* payload,
                                   Py_ssize_t payload_length) noexcept nogil:
    """Write a PUBLISH at `p`; the packet identifier only if the QoS, in `first_byte`, is not 0.

    If `remaining` exceeds topic name, packet identifier and payload, room for the properties of level 5 is left before
    the payload. Returns the place of the properties; without any, the place of the payload.
    """
    cdef uint8_t* rest
    p[0] = first_byte
    p += 1 + write_varint(p + 1, remaining)
    rest = p + remaining - payload_length
    write_u16(p, <uint16_t>topic_length)
    memcpy(p + 2, topic, topic_length)
    p += 2 + topic_length
    if first_byte & 6:
        write_u16(p, packet_id)
        p += 2
    memcpy(rest, payload, payload_length)
    return p


cdef inline Py_ssize_t properties_size(bint expires, uint16_t alias, Py_ssize_t identifiers_length,
                                       Py_ssize_t length) noexcept nogil:
    """Bytes of a property block with its length: expiry interval, alias, subscription identifiers, other properties."""
    cdef Py_ssize_t n = EXPIRY_SIZE * expires + ALIAS_SIZE * (alias != 0) + identifiers_length + length
    return varint_size(<uint32_t>n) + n


cdef inline void write_expiry(uint8_t* p, uint32_t seconds) noexcept nogil:
    """Write the property Message Expiry Interval, EXPIRY_SIZE bytes."""
    p[0] = MESSAGE_EXPIRY_INTERVAL
    write_u16(p + 1, <uint16_t>(seconds >> 16))
    write_u16(p + 3, <uint16_t>seconds)


cdef inline void write_properties(uint8_t* p, bint expires, uint32_t seconds, uint16_t alias,
                                  const uint8_t* identifiers, Py_ssize_t identifiers_length,
                                  const uint8_t* properties, Py_ssize_t length) noexcept nogil:
    """Write a property block with its length, at the place that `write_publish` returns."""
    p += write_varint(p, <uint32_t>(EXPIRY_SIZE * expires + ALIAS_SIZE * (alias != 0) + identifiers_length + length))
    if expires:
        write_expiry(p, seconds)
        p += EXPIRY_SIZE
    if alias:
        p[0] = TOPIC_ALIAS
        write_u16(p + 1, alias)
        p += ALIAS_SIZE
    if identifiers_length:
        memcpy(p, identifiers, identifiers_length)
        p += identifiers_length
    if length:
        memcpy(p, properties, length)


cdef inline bint is_transaction(const uint8_t* topic, Py_ssize_t n) noexcept nogil:
    """Whether the topic is a chunk of a transaction, or its commit."""
    return n >= 13 and memcmp(topic, b"$transaction/", 13) == 0


cdef inline bint is_reserved(const uint8_t* topic, Py_ssize_t n) noexcept nogil:
    """Whether no message to the topic is delivered.

    Below $SYS the node publishes [MQTT-4.7.2-1]; below $stream are requests, and below $transaction commands.
    """
    return n >= 4 and topic[0] == c'$' and (
        memcmp(topic, b"$SYS", 4) == 0 and (n == 4 or topic[4] == c'/')
        or n >= 8 and memcmp(topic, b"$stream/", 8) == 0
        or is_transaction(topic, n))
