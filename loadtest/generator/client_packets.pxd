# The packets that the generator's clients send. A `put_` function writes at `p` and returns the place behind.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from _speedups.codec.publish cimport PUBLISH_QOS_0, publish_remaining, write_publish
from _speedups.codec.tables cimport CONNECT, PUBLISH, SUBSCRIBE
from loadtest.generator.connection cimport SUBSCRIBER, Connection
from loadtest.generator.shapes cimport TOPIC_SIZE, Shape, put_filter, put_topic
from loadtest.generator.wire cimport put_bytes, put_decimal, put_length, put_uint16

cdef enum:
    LOGIN_SIZE = 260            # bytes of user name and password, each after its length
    CONNECT_SIZE = 64 + LOGIN_SIZE
    FILTERS_PER_PACKET = 32     # in one SUBSCRIBE
    SUBSCRIBE_SIZE = FILTERS_PER_PACKET * (TOPIC_SIZE + 3) + 8
    PUBLISH_OVERHEAD = TOPIC_SIZE + 16  # bytes of a PUBLISH beside its payload, at most

cdef struct ConnectFields:
    bint clean_session
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


cdef inline uint8_t* put_connect(uint8_t* p, const ConnectFields* fields, const Connection* connection) noexcept nogil:
    cdef uint8_t[CONNECT_SIZE] body
    cdef uint8_t* end
    cdef uint8_t* client_id
    cdef const char* letters = "psitr"
    end = put_bytes(body, b"\x00\x04MQTT\x04", 7)
    end[0] = <uint8_t>((2 if fields.clean_session else 0) | fields.login_flags)
    client_id = put_uint16(end + 1, fields.keep_alive)
    end = put_bytes(client_id + 2, fields.prefix, fields.prefix_size)
    end[0] = <uint8_t>letters[connection.role]
    end = put_decimal(end + 1, connection.index)
    put_uint16(client_id, <uint32_t>(end - client_id - 2))
    end = put_bytes(end, fields.login, fields.login_size)
    p[0] = CONNECT << 4
    p = put_length(p + 1, <uint32_t>(end - body))
    return put_bytes(p, body, <size_t>(end - body))


cdef inline uint8_t* put_subscribe(
    uint8_t* p, const Shape* shape, const Connection* connection, uint32_t first, uint32_t count, uint8_t qos
) noexcept nogil:
    """SUBSCRIBE to `count` filters of a subscriber from number `first` on, or to the own topic of another client."""
    cdef uint8_t[SUBSCRIBE_SIZE] body
    cdef uint8_t* topic_filter
    cdef uint8_t* end = put_uint16(body, first // FILTERS_PER_PACKET + 1)
    cdef uint32_t which
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


cdef inline uint8_t* put_message(
    uint8_t* p, const Shape* shape, const PayloadHeader* header, int qos, uint16_t packet_id, const uint8_t* filler,
    uint32_t payload
) noexcept nogil:
    """A PUBLISH whose payload is `filler` behind the header."""
    cdef uint8_t[TOPIC_SIZE] topic
    cdef Py_ssize_t size = put_topic(shape, header.topic, topic) - topic
    p = write_publish(
        p, <uint8_t>(PUBLISH_QOS_0 | qos << 1), publish_remaining(size, payload, qos), topic, size, packet_id, filler,
        payload)
    memcpy(p, header, sizeof(PayloadHeader))
    return p + payload
