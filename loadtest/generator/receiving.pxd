# Received messages and acknowledgements: their check, their latency and the replies.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..._speedups.base.cursor cimport Cursor, read_varint, varint_size
from ..._speedups.codec.tables cimport PUBACK, PUBREC, PUBREL
from .checker cimport DUPLICATE, IN_ORDER, Stream, observe
from .client_packets cimport ALIAS_SIZE, PayloadHeader
from .connection cimport Connection, Network
from .subscribers cimport (
    AGAIN_AFTER_CUT,
    FIRST,
    Subscribers,
    is_acknowledged_later,
    is_resent,
    note_receiver,
)
from .shapes cimport Shape, is_subscribed
from .wire cimport get_uint16, put_uint16

cdef extern from *:
    int __builtin_clzll(unsigned long long value) noexcept nogil

cdef enum:
    FIRST_FAILURE = 0x80        # reason codes from here on are refusals
    BUCKETS = 64 * 64           # latency histogram: 64 steps per power of two of ns, each 1.6 % wide

cdef struct Receiving:
    const Shape* shape          # borrowed
    Subscribers* subscribers    # borrowed; NULL if the shape is not SHARED
    int qos
    uint32_t payload            # bytes
    uint8_t level               # of the protocol
    bint with_identifiers       # of the subscriptions
    bint with_aliases           # messages may have topic aliases
    uint32_t properties         # bytes of the property block that a publisher sends, level 5
    uint32_t window             # unacknowledged messages per publisher
    uint32_t stream_count       # per subscriber
    uint8_t* replies            # acknowledgements that one read causes; owned by the generator
    size_t reply_size
    uint64_t* last_delivery     # ns; borrowed
    uint64_t latency_from       # ns; messages sent earlier are not in the histogram
    uint64_t* histogram         # deliveries by latency, take-overs by the time from CONNECT to CONNACK; owned


cdef inline uint32_t bucket_of(uint64_t value) noexcept nogil:
    """The bucket of a latency in ns."""
    cdef uint32_t power = 57 - <uint32_t>__builtin_clzll(value | 127)
    return power * 64 + <uint32_t>(value >> power)


cdef inline void add_latency(Receiving* load, uint64_t latency) noexcept nogil:
    load.histogram[bucket_of(latency)] += 1


cdef inline void reply(Receiving* load, uint32_t first, uint32_t packet_id) noexcept nogil:
    cdef uint8_t* p = load.replies + load.reply_size
    p[0] = <uint8_t>first
    p[1] = 2
    put_uint16(p + 2, packet_id)
    load.reply_size += 4


cdef inline uint32_t properties_end(
    const Receiving* load, const Connection* connection, const uint8_t* body, uint32_t at, uint32_t size
) noexcept nogil:
    """The place behind the property block at `at`; 0 if it is not as long as it must be."""
    cdef Cursor c
    cdef uint32_t length = 0
    cdef uint32_t expected = load.properties
    if load.with_identifiers:
        expected += 1 + varint_size(connection.index + 1)
    c.p = body + at
    c.end = body + size
    if at >= size or read_varint(&c, &length) == -1 or <uint32_t>(c.end - c.p) < length:
        return 0
    if length != expected and not (load.with_aliases and length == expected + ALIAS_SIZE):
        return 0
    return <uint32_t>(c.p - body) + length


cdef inline bint is_first(
    Network* network, Receiving* load, const Connection* connection, uint32_t publisher, uint64_t number
) noexcept nogil:
    """Whether no subscriber has had the message; counts one that came again."""
    cdef int result = note_receiver(load.subscribers, connection.index, publisher, number)
    if result == AGAIN_AFTER_CUT:
        network.counters.repeated += 1
    elif result != FIRST:
        network.counters.duplicates += 1
    return result == FIRST


cdef inline void handle_publish(
    Network* network, Receiving* load, Connection* connection, uint8_t first, const uint8_t* body, uint32_t size,
    uint64_t now
) noexcept nogil:
    cdef PayloadHeader header
    cdef Stream* stream
    cdef int result
    cdef uint32_t qos = first >> 1 & 3, packet_id = 0
    cdef uint32_t at = 2 + (get_uint16(body) if size >= 2 else size)
    if qos and at + 2 <= size:
        packet_id = get_uint16(body + at)
        if load.subscribers == NULL or not is_acknowledged_later(load.subscribers, connection.index, packet_id):
            reply(load, (PUBACK if qos == 1 else PUBREC) << 4, packet_id)
        at += 2
    if load.level == 5:
        at = properties_end(load, connection, body, at, size) if at < size else 0
    if at == 0 or at + load.payload != size or qos != <uint32_t>load.qos or connection.streams == NULL:
        network.counters.malformed += 1
        return
    memcpy(&header, body + at, sizeof(header))
    if header.run != network.run_id or header.publisher >= load.shape.publishers or header.sequence == 0:
        network.counters.foreign += 1
        return
    if not is_subscribed(load.shape, connection.index, header.topic):
        network.counters.misrouted += 1
        return
    if load.subscribers != NULL:
        if qos == 2 and is_resent(load.subscribers, connection.index, packet_id):
            return
        if not is_first(network, load, connection, header.publisher, header.sequence):
            return
    stream = connection.streams if load.stream_count == 1 else connection.streams + header.publisher
    result = observe(stream, header.sequence)
    if result == DUPLICATE:
        network.counters.duplicates += 1
        return
    if result != IN_ORDER:
        if load.subscribers != NULL and (network.counters.cuts or network.nodes > 1):
            # The subscriber gets messages that another one had, or for which another node had no room.
            network.counters.returned += 1
        else:
            network.counters.reordered += 1
    network.counters.received += 1
    load.last_delivery[0] = now
    if header.sent >= load.latency_from:
        add_latency(load, now - header.sent)


cdef inline void handle_acknowledgement(
    Network* network, Receiving* load, Connection* connection, uint32_t kind, uint32_t packet_id, uint32_t reason_code
) noexcept nogil:
    if reason_code >= FIRST_FAILURE:
        network.counters.malformed += 1
    if (
        connection.in_flight == NULL or not 1 <= packet_id <= load.window or connection.in_flight[packet_id] == 0
        or (kind == PUBACK) != (load.qos == 1)
    ):
        network.counters.malformed += 1
    elif kind == PUBREC and reason_code < FIRST_FAILURE:
        reply(load, PUBREL << 4 | 2, packet_id)
    else:
        connection.in_flight[packet_id] = 0
        connection.free_ids[connection.free_count] = <uint16_t>packet_id
        connection.free_count += 1
        network.counters.acknowledged += 1
