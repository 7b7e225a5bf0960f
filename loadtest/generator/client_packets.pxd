# The packets that the generator's clients send. A `put_` function writes at `p` and returns the place behind.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..._speedups.base.cursor cimport varint_size
from ..._speedups.codec.publish cimport PUBLISH_QOS_0, publish_remaining, write_publish
from ..._speedups.codec.tables cimport CONNECT, PUBLISH, SUBSCRIBE
from .connection cimport SUBSCRIBER, Connection
from .shapes cimport TOPIC_SIZE, Shape, put_filter, put_topic
from .wire cimport get_uint16, put_bytes, put_decimal, put_length, put_uint16

cdef enum:
    SESSION_EXPIRY_INTERVAL = 0x11
    RECEIVE_MAXIMUM = 0x21
    RECEIVE_MAXIMUM_DEFAULT = 65535
    USER_PROPERTY = 0x26
    SUBSCRIPTION_IDENTIFIER = 0x0B
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    ALIAS_SIZE = 3              # bytes of a topic alias as a property
    SUBSCRIBER_ALIASES = 10     # that a subscriber takes
    LOGIN_SIZE = 260            # bytes of user name and password, each after its length
    CONNECT_SIZE = 64 + LOGIN_SIZE
    FILTERS_PER_PACKET = 32     # in one SUBSCRIBE
    SUBSCRIBE_SIZE = FILTERS_PER_PACKET * (TOPIC_SIZE + 3) + 16
    PUBLISH_OVERHEAD = TOPIC_SIZE + 16  # bytes of a PUBLISH beside its payload and properties, at most

cdef struct ConnectFields:
    uint8_t level               # of the protocol
    bint clean_session
    uint8_t aliases             # Topic Alias Maximum of subscribers, level 5; 0 = none
    uint32_t keep_alive         # seconds
    char[17] prefix             # of the client identifier
    uint32_t prefix_size
    uint8_t[LOGIN_SIZE] login   # user name and password, as in CONNECT
    uint32_t login_size
    uint8_t login_flags         # 0 = no credentials

cdef struct PayloadHeader:      # the start of every payload, in this machine's byte order
    uint32_t run                # identifies this run's messages
    uint32_t publisher
    uint32_t topic
    uint32_t unused
    uint64_t sequence           # of the publisher, from 1
    uint64_t sent               # ns, CLOCK_MONOTONIC


cdef inline uint32_t property_size(uint8_t identifier, const uint8_t* value, const uint8_t* end) noexcept nogil:
    """Bytes of the value of a property of CONNACK; 0 = unknown."""
    cdef uint32_t first
    if identifier in (0x24, 0x25, 0x28, 0x29, 0x2A):
        return 1
    if identifier in (0x13, RECEIVE_MAXIMUM, 0x22):
        return 2
    if identifier in (SESSION_EXPIRY_INTERVAL, 0x27):
        return 4
    if identifier not in (0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F, USER_PROPERTY) or end - value < 2:
        return 0
    first = 2 + get_uint16(value)
    if identifier != USER_PROPERTY:
        return first
    return first + 2 + get_uint16(value + first) if end - value >= first + 2 else 0


cdef inline uint32_t connack_receive_maximum(const uint8_t* body, uint32_t size) noexcept nogil:
    """The Receive Maximum in a CONNACK of level 5: messages that the broker takes unacknowledged [5: 4.9]."""
    cdef const uint8_t* end = body + size
    cdef const uint8_t* p = body + 2
    cdef uint32_t n
    while p < end and p[0] & 0x80:              # the length of the block
        p += 1
    p += 1
    while p < end:
        n = property_size(p[0], p + 1, end)
        if n == 0 or end - p <= n:
            break
        if p[0] == RECEIVE_MAXIMUM:
            return get_uint16(p + 1)
        p += 1 + n
    return RECEIVE_MAXIMUM_DEFAULT


cdef inline uint8_t* put_connect(uint8_t* p, const ConnectFields* fields, const Connection* connection) noexcept nogil:
    cdef uint8_t[CONNECT_SIZE] body
    cdef uint8_t* end
    cdef uint8_t* client_id
    cdef uint8_t* properties
    cdef const char* letters = "psitr"
    end = put_bytes(body, b"\x00\x04MQTT", 6)
    end[0] = fields.level
    end += 1
    end[0] = <uint8_t>((2 if fields.clean_session else 0) | fields.login_flags)
    client_id = put_uint16(end + 1, fields.keep_alive)
    if fields.level == 5:
        properties = client_id
        client_id += 1
        if not fields.clean_session:
            client_id[0] = SESSION_EXPIRY_INTERVAL
            client_id = put_bytes(client_id + 1, b"\xff\xff\xff\xff", 4)  # for ever
        if fields.aliases and connection.role == SUBSCRIBER:
            client_id[0] = TOPIC_ALIAS_MAXIMUM
            client_id = put_uint16(client_id + 1, fields.aliases)
        properties[0] = <uint8_t>(client_id - properties - 1)
    end = put_bytes(client_id + 2, fields.prefix, fields.prefix_size)
    end[0] = <uint8_t>letters[connection.role]
    end = put_decimal(end + 1, connection.index)
    put_uint16(client_id, <uint32_t>(end - client_id - 2))
    end = put_bytes(end, fields.login, fields.login_size)
    p[0] = CONNECT << 4
    p = put_length(p + 1, <uint32_t>(end - body))
    return put_bytes(p, body, <size_t>(end - body))


cdef inline uint8_t* put_subscribe(
    uint8_t* p, const Shape* shape, const Connection* connection, uint32_t first, uint32_t count, uint8_t qos,
    uint8_t level, bint with_identifier
) noexcept nogil:
    """SUBSCRIBE to `count` filters of a subscriber from number `first` on, or to the own topic of another client."""
    cdef uint8_t[SUBSCRIBE_SIZE] body
    cdef uint8_t* topic_filter
    cdef uint8_t* end = put_uint16(body, first // FILTERS_PER_PACKET + 1)
    cdef uint32_t which
    if level == 5:
        end[0] = 0
        if with_identifier:
            end[0] = <uint8_t>(1 + varint_size(connection.index + 1))
            end[1] = SUBSCRIPTION_IDENTIFIER
            end = put_length(end + 2, connection.index + 1)
        else:
            end += 1
    for which in range(first, first + count):
        topic_filter = end
        if connection.role == SUBSCRIBER:
            end = put_filter(shape, connection.index, which, end + 2)
        else:
            end = put_decimal(put_bytes(end + 2, b"load/idle/", 10), connection.index)
        put_uint16(topic_filter, <uint32_t>(end - topic_filter - 2))
        end[0] = qos
        end += 1
    p[0] = SUBSCRIBE << 4 | 2
    p = put_length(p + 1, <uint32_t>(end - body))
    return put_bytes(p, body, <size_t>(end - body))


# The common form of all messages of a run.
cdef struct MessageForm:
    const Shape* shape          # borrowed
    int qos
    uint32_t payload            # bytes
    uint8_t* filler             # payload bytes; owned by the generator
    uint8_t* properties         # property block with its length; NULL below level 5; owned by the generator
    uint32_t properties_size    # bytes of both
    bint has_alias              # the block ends with the topic's alias: only a first message has the topic name


cdef inline uint8_t* put_message(
    uint8_t* p, const MessageForm* form, const PayloadHeader* header, uint16_t packet_id
) noexcept nogil:
    """A PUBLISH whose payload is the filler behind the header."""
    cdef uint8_t[TOPIC_SIZE] topic
    cdef Py_ssize_t size = 0
    if not form.has_alias or header.sequence == 1:
        size = put_topic(form.shape, header.topic, topic) - topic
    p = write_publish(
        p, <uint8_t>(PUBLISH_QOS_0 | form.qos << 1),
        publish_remaining(size, form.payload, form.qos) + form.properties_size, topic, size, packet_id, form.filler,
        form.payload)
    p = put_bytes(p, form.properties, form.properties_size)
    memcpy(p, header, sizeof(PayloadHeader))
    return p + form.payload
