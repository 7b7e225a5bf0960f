# The subscribers of a shared subscription: which of them got which message, slow ones and dying ones.
#
# The first `slow` subscribers acknowledge a few messages a second. The next `dying` ones lose their connection every so
# often, without DISCONNECT, and return. All others are equal. Rules:
# - A message is expected once over all subscribers. One that comes again is excused at QoS 1 if the connection that got
# it first was cut. At QoS 2 sessions are persistent: a PUBLISH whose packet identifier is not released is no message.
# - Subscribers are slow, and die, only while messages are published.

from libc.errno cimport EAGAIN
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from ..._speedups.codec.tables cimport PUBACK, PUBREC
from .connection cimport (
    READY,
    SOL_SOCKET,
    Connection,
    Network,
    dial,
    hang_up,
    setsockopt,
    write,
)
from .wire cimport put_uint16

cdef extern from "<sys/socket.h>" nogil:
    enum: SO_LINGER
    struct linger:
        int l_onoff
        int l_linger

cdef enum:
    IDENTIFIERS = 65536         # packet identifiers, and one
    FIRST_ROOM = 1024           # messages of a publisher
    RETRY = 10 * 1000000        # ns until a record is tried again

cdef enum:                      # results of `note_receiver`
    FIRST = 0
    AGAIN = 1
    AGAIN_AFTER_CUT = 2

cdef struct GroupSubscriber:
    uint64_t received           # messages that it got first
    uint32_t connection         # number of its connection, from 0
    bint away                   # its connection was cut, and it has not dialed since
    uint64_t due                # ns: of the next acknowledgement, cut or return
    uint16_t* waiting           # slow: a ring of packet identifiers that are not acknowledged
    uint32_t first, count       # of the ring
    uint8_t* unreleased         # dying, QoS 2: one bit for each packet identifier

cdef struct Given:              # the messages of one publisher
    uint32_t* to                # by number: subscriber + 1 and, in the upper half, its connection; 0 = not yet
    uint64_t room

cdef struct Subscribers:
    GroupSubscriber* all                 # owned; NULL: the shape is not shared
    Given* given                # by publisher; owned
    uint32_t count, publishers, slow, dying
    int qos
    uint64_t period             # ns between two acknowledgements of a slow subscriber
    uint64_t every              # ns between two cuts of a dying subscriber
    uint64_t away               # ns between a cut and the return
    bint started


cdef inline int prepare_subscribers(Subscribers* subscribers) noexcept nogil:
    """Make the records. Returns 0, or -1 without memory."""
    cdef uint32_t i
    cdef GroupSubscriber* subscriber
    subscribers.all = <GroupSubscriber*>calloc(subscribers.count + 1, sizeof(GroupSubscriber))
    subscribers.given = <Given*>calloc(subscribers.publishers + 1, sizeof(Given))
    if subscribers.all == NULL or subscribers.given == NULL:
        return -1
    for i in range(subscribers.slow + subscribers.dying):
        subscriber = &subscribers.all[i]
        if i < subscribers.slow:
            subscriber.waiting = <uint16_t*>calloc(IDENTIFIERS, sizeof(uint16_t))
            if subscriber.waiting == NULL:
                return -1
        elif subscribers.qos == 2:
            subscriber.unreleased = <uint8_t*>calloc(IDENTIFIERS // 8, 1)
            if subscriber.unreleased == NULL:
                return -1
    return 0


cdef inline void free_subscribers(Subscribers* subscribers) noexcept nogil:
    cdef uint32_t i
    if subscribers.all != NULL:
        for i in range(subscribers.count):
            free(subscribers.all[i].waiting)
            free(subscribers.all[i].unreleased)
    if subscribers.given != NULL:
        for i in range(subscribers.publishers):
            free(subscribers.given[i].to)
    free(subscribers.all)
    free(subscribers.given)


cdef inline int note_receiver(Subscribers* subscribers, uint32_t index, uint32_t publisher,
                              uint64_t number) noexcept nogil:
    """Record that a subscriber got a message; returns one of the three results, or -1 without memory."""
    cdef GroupSubscriber* subscriber = &subscribers.all[index]
    cdef Given* given = &subscribers.given[publisher]
    cdef uint64_t room = given.room
    cdef void* grown
    cdef uint32_t first
    if number >= room:
        room = max(<uint64_t>FIRST_ROOM, number * 2)
        grown = realloc(given.to, room * sizeof(uint32_t))
        if grown == NULL:
            return -1
        given.to = <uint32_t*>grown
        memset(given.to + given.room, 0, (room - given.room) * sizeof(uint32_t))
        given.room = room
    first = given.to[number]
    if first == 0:
        given.to[number] = (subscriber.connection & 0xFFFF) << 16 | (index + 1)
        subscriber.received += 1
        return FIRST
    if subscribers.qos == 1 and first >> 16 != subscribers.all[(first & 0xFFFF) - 1].connection & 0xFFFF:
        return AGAIN_AFTER_CUT
    return AGAIN


cdef inline bint is_resent(Subscribers* subscribers, uint32_t index, uint32_t packet_id) noexcept nogil:
    """Whether a PUBLISH of QoS 2 comes again before PUBREL; notes its packet identifier."""
    cdef uint8_t* at = subscribers.all[index].unreleased
    cdef uint8_t bit = <uint8_t>(1 << (packet_id & 7))
    if at == NULL:
        return False
    at += packet_id >> 3
    if at[0] & bit:
        return True
    at[0] |= bit
    return False


cdef inline void release_identifier(Subscribers* subscribers, uint32_t index, uint32_t packet_id) noexcept nogil:
    """PUBREL has come."""
    if subscribers.all != NULL and subscribers.all[index].unreleased != NULL:
        subscribers.all[index].unreleased[packet_id >> 3] &= <uint8_t>~(1 << (packet_id & 7))


cdef inline bint is_acknowledged_later(Subscribers* subscribers, uint32_t index, uint32_t packet_id) noexcept nogil:
    """Whether the subscriber is slow: then its acknowledgement waits."""
    cdef GroupSubscriber* subscriber = &subscribers.all[index]
    if subscriber.waiting == NULL or subscriber.count == IDENTIFIERS:
        return False
    subscriber.waiting[(subscriber.first + subscriber.count) % IDENTIFIERS] = <uint16_t>packet_id
    subscriber.count += 1
    return True


cdef inline void acknowledge_slowly(
    Network* network, const Subscribers* subscribers, GroupSubscriber* subscriber, Connection* connection, uint64_t now,
    bint slowly
) noexcept nogil:
    """Send the due acknowledgements of a slow subscriber."""
    cdef uint8_t[4] packet
    packet[0] = <uint8_t>((PUBACK if subscribers.qos == 1 else PUBREC) << 4)
    packet[1] = 2
    while subscriber.count and connection.state == READY and (not slowly or now >= subscriber.due):
        put_uint16(packet + 2, subscriber.waiting[subscriber.first])
        subscriber.first = (subscriber.first + 1) % IDENTIFIERS
        subscriber.count -= 1
        subscriber.due = (subscriber.due if now - subscriber.due < subscribers.period else now) + subscribers.period
        write(network, connection, packet, 4)


cdef inline void cut(Network* network, const Subscribers* subscribers, GroupSubscriber* subscriber,
                     Connection* connection) noexcept nogil:
    """Reset the connection, as a power failure does: the broker gets no DISCONNECT."""
    cdef linger at_once
    at_once.l_onoff, at_once.l_linger = 1, 0
    setsockopt(connection.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once))
    hang_up(network, connection)
    network.counters.cuts += 1
    subscriber.connection += 1
    subscriber.away = True


cdef inline void serve_subscribers(
    Network* network, Subscribers* subscribers, Connection* connections, uint64_t now, bint publishing, uint32_t nodes
) noexcept nogil:
    """Send what slow subscribers acknowledge now; cut dying ones, which return at the next node."""
    cdef uint32_t i
    cdef GroupSubscriber* subscriber
    cdef Connection* connection
    if not subscribers.slow and not subscribers.dying:
        return
    if publishing and not subscribers.started:
        subscribers.started = True
        for i in range(subscribers.dying):
            subscribers.all[subscribers.slow + i].due = now + subscribers.every * (i + 1) // subscribers.dying
    for i in range(subscribers.slow + subscribers.dying):
        subscriber, connection = &subscribers.all[i], &connections[i]
        if i < subscribers.slow:
            acknowledge_slowly(network, subscribers, subscriber, connection, now, publishing)
        elif subscriber.away:
            if now >= subscriber.due:
                subscriber.away = False
                subscriber.due = now + subscribers.every
                connection.target = <uint8_t>((connection.target if connection.target else 1) % nodes)
                if connection.target:
                    connection.target += 1
                dial(network, connection)
        elif publishing and subscribers.started and now >= subscriber.due and connection.state == READY:
            cut(network, subscribers, subscriber, connection)
            subscriber.due = now + subscribers.away
