# Writes a message to a connection as PUBLISH: with its properties, topic alias and packet identifier. Inline.

from libc.stdint cimport uint8_t, uint16_t, uint32_t

from ..codec.publish cimport properties_size, publish_remaining, publish_size, write_properties, write_publish
from ..codec.tenants cimport tenant_size
from .counters cimport PACKETS_SENT, PUBLISH_BYTES_SENT, PUBLISH_SENT, TOO_LARGE
from .message cimport Message, message_payload, message_properties, seconds_left
from .topic_aliases cimport ALIAS_ROOM, alias_of
from .turn cimport Outlet

cdef enum:
    QOS_BITS = 6               # of the first byte of PUBLISH


cdef inline bint write_message(Outlet outlet, const Message* m, uint8_t first_byte, uint16_t packet_id,
                               bytes identifiers) except -1:
    """Write a PUBLISH, and count it. False: the client takes no packet of its size [5: MQTT-3.1.2-24].

    `identifiers`: the subscription identifiers, as properties.
    """
    cdef Py_ssize_t hidden = tenant_size(m.data, m.topic_length)      # bytes of its name that no client sees
    cdef const uint8_t* topic = m.data + hidden
    cdef Py_ssize_t topic_length = m.topic_length - hidden
    cdef uint32_t remaining = publish_remaining(topic_length, m.payload_length, first_byte & 6)
    cdef uint16_t alias = 0
    cdef bint in_place = False
    cdef uint8_t* properties
    if outlet.level == 5:
        remaining += <uint32_t>properties_size(m.expires != 0, 0, len(identifiers), m.properties_length)
        if publish_size(remaining) > <Py_ssize_t>outlet.largest:
            outlet.turn.counters[TOO_LARGE] += 1
            return False
        # Not with QoS 1 and 2: some clients keep such a message, with an empty topic name, until PUBREL.
        if (not first_byte & QOS_BITS and outlet.aliases.maximum
                and publish_size(remaining) + ALIAS_ROOM <= <Py_ssize_t>outlet.largest):
            alias = alias_of(&outlet.aliases, topic, topic_length, &in_place)
            if alias:
                topic_length = 0 if in_place else topic_length
                remaining = publish_remaining(topic_length, m.payload_length, first_byte & 6)
                remaining += <uint32_t>properties_size(m.expires != 0, alias, len(identifiers), m.properties_length)
    properties = write_publish(outlet.reserve(publish_size(remaining)), first_byte, remaining, topic,
                               topic_length, packet_id, message_payload(m), m.payload_length)
    if outlet.level == 5:
        write_properties(properties, m.expires != 0, seconds_left(m.expires, outlet.turn.clock), alias, identifiers,
                         len(identifiers), message_properties(m), m.properties_length)
    outlet.turn.counters[PACKETS_SENT] += 1
    outlet.turn.counters[PUBLISH_SENT] += 1
    outlet.turn.counters[PUBLISH_BYTES_SENT] += m.payload_length
    return True
