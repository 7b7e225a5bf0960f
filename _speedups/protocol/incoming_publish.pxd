# A PUBLISH of a client, from its bytes to a publication: the steps that need no state of the connection. Inline.

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memchr

from ..base.cursor cimport Cursor, read_varint, varint_size
from ..codec.properties cimport PropertyScan, scan_properties
from ..codec.publish cimport FLAG_DUP, FLAG_RETAIN, PUBLISH_QOS_0, SUBSCRIPTION_IDENTIFIER
from ..codec.tables cimport PUBLISH
from ..codec.topics cimport check_utf8
from ..session.message cimport Publication, publication_named

# Why a PUBLISH ends its connection: index of PUBLISH_FAULTS in close_reasons.py.
cdef enum:
    SOUND = 0
    DUP_WITH_QOS_0
    TOO_SHORT
    TOPIC_TOO_LONG
    PACKET_ID_0
    PROPERTIES_TOO_LONG
    PROPERTIES_LENGTH_FORM
    SUBSCRIPTION_IDENTIFIER_SENT
    NO_TOPIC
    # These have their own text.
    PROPERTY_FAULT
    ALIAS_TOO_HIGH

cdef struct Incoming:
    Publication publication    # carries the delivery plan of its topic name from the check of the name to the router
    uint16_t packet_id         # 0 with QoS 0
    PropertyScan scan          # of the properties, if it has any
    int property_code          # reason code of a PROPERTY_FAULT


cdef inline int read_publish(Incoming* incoming, uint8_t first_byte, const uint8_t* packet, const uint8_t* body,
                             Py_ssize_t n, int level) noexcept nogil:
    """Take a PUBLISH apart, but for its properties: they are still at the front of the payload at level 5."""
    cdef Publication* publication = &incoming.publication
    cdef uint8_t qos = first_byte >> 1 & 3
    cdef uint16_t packet_id = 0
    cdef const uint8_t* payload
    cdef const uint8_t* end = body + n
    if qos == 0 and first_byte & FLAG_DUP and level > 3:
        return DUP_WITH_QOS_0
    if n < 2 + 2 * (qos > 0):
        return TOO_SHORT
    payload = body + 2 + (body[0] << 8 | body[1])
    if payload + 2 * (qos > 0) > end:
        return TOPIC_TOO_LONG
    if qos:
        packet_id = payload[0] << 8 | payload[1]
        if packet_id == 0:
            return PACKET_ID_0
        payload += 2
    publication[0] = publication_named(body + 2, body[0] << 8 | body[1], payload, end - payload, qos,
                                       first_byte & FLAG_RETAIN)
    incoming.packet_id = packet_id
    publication.dup = first_byte & FLAG_DUP
    publication.divisible = qos == 1            # its client sends it again until it gets PUBACK
    publication.packet_size = <uint32_t>(end - packet)
    if level < 5 and first_byte == PUBLISH_QOS_0 and body - packet == 1 + varint_size(<uint32_t>n):
        publication.packet = packet             # receivers get it as received: no flags, and the shortest header
    return SOUND


cdef inline int read_properties(Incoming* incoming, uint8_t first_byte, const uint8_t* packet) noexcept nogil:
    """Take the property block from the front of the payload, and check it.

    The publication gets it whole; `scan` has the properties that do not travel with the message.
    """
    cdef Publication* publication = &incoming.publication
    cdef Cursor at
    cdef uint32_t length = 0
    at.p = publication.payload
    at.end = at.p + publication.payload_length
    if read_varint(&at, &length) < 0 or at.end - at.p < <Py_ssize_t>length:
        return PROPERTIES_TOO_LONG
    if at.p - publication.payload != varint_size(length):
        return PROPERTIES_LENGTH_FORM
    publication.payload = at.p + length
    publication.payload_length = at.end - publication.payload
    if first_byte == PUBLISH_QOS_0:
        publication.packet_5 = packet
        publication.packet_5_size = publication.packet_size
    if length:
        publication.properties = at.p
        publication.properties_length = length
        incoming.property_code = scan_properties(at.p, length, PUBLISH, &incoming.scan)
        if incoming.property_code:
            return PROPERTY_FAULT
        if incoming.scan.seen >> SUBSCRIPTION_IDENTIFIER & 1:
            return SUBSCRIPTION_IDENTIFIER_SENT
    return SOUND


cdef inline bint is_text(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Whether the bytes are UTF-8. A payload may hold U+0000, unlike the strings of the protocol."""
    cdef const uint8_t* end = p + n
    cdef const uint8_t* zero
    while p < end:
        zero = <const uint8_t*>memchr(p, 0, end - p)
        if zero == NULL:
            zero = end
        if check_utf8(p, zero - p):
            return False
        p = zero + 1
    return True
