# The publishers: which of them may send now, and their messages.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc

from .client_packets cimport MessageForm, PayloadHeader, put_message
from .connection cimport READY, Connection, Network, write
from .shapes cimport deliveries, pick_topic
from .wire cimport monotonic_ns

cdef enum:
    WRITES_PER_TURN = 8         # of one publisher, before the next one's turn
    WRITE_OFF = 1000 * 1000000  # ns without a delivery, after which outstanding ones no longer hold publishers back

cdef struct Publishing:
    MessageForm form
    Connection* publishers      # borrowed
    Connection** active         # publishers that may be able to send now (rate 0)
    uint32_t active_count
    uint32_t turn               # in `active`, or the publisher of the last message (rate)
    uint32_t batch              # messages per write
    uint32_t window             # unacknowledged messages per publisher
    uint64_t backlog            # outstanding deliveries at which publishers pause; 0 = no limit
    uint64_t count              # messages over all publishers; 0 = no limit
    double rate                 # messages per second; 0 = as many as possible
    uint64_t started            # ns, of the phase
    uint64_t issued             # messages sent in the phase (rate)
    uint64_t last_delivery      # ns
    uint8_t* outgoing           # one write of a publisher; owned by the generator


cdef inline int prepare_publisher(const Publishing* load, Connection* connection) noexcept nogil:
    """Give a publisher its quota and packet identifiers. Returns 0, or -1 without memory."""
    cdef uint32_t i
    connection.quota = <uint64_t>-1
    if load.count:
        connection.quota = load.count // load.form.shape.publishers
        connection.quota += connection.index < load.count % load.form.shape.publishers
    connection.random = (<uint64_t>connection.index + 1) * <uint64_t>0x9E3779B97F4A7C15
    if load.form.qos == 0:
        return 0
    connection.in_flight = <uint64_t*>calloc(load.window + 1, sizeof(uint64_t))
    connection.free_ids = <uint16_t*>calloc(load.window, sizeof(uint16_t))
    if connection.in_flight == NULL or connection.free_ids == NULL:
        return -1
    for i in range(load.window):
        connection.free_ids[i] = <uint16_t>(load.window - i)
    connection.free_count = load.window
    return 0


cdef inline uint64_t outstanding(const Network* network, const Publishing* load) noexcept nogil:
    """Expected deliveries and acknowledgements; not below 0 when written-off deliveries arrive after all."""
    cdef uint64_t done = network.counters.received + network.counters.written_off
    cdef uint64_t expected = network.counters.expected
    cdef uint64_t left = expected - done if expected > done else 0
    if load.form.qos:
        left += network.counters.published - network.counters.acknowledged
    return left


cdef inline void activate(Publishing* load, Connection* connection) noexcept nogil:
    """The publisher may be able to send: try in the next turn."""
    if not connection.active and load.rate == 0 and connection.sequence < connection.quota:
        connection.active = True
        load.active[load.active_count] = connection
        load.active_count += 1


cdef inline bint must_wait(Network* network, Publishing* load) noexcept nogil:
    """Whether the backlog is full. Missing messages are written off WRITE_OFF after the last delivery."""
    cdef uint64_t now
    if (
        load.backlog == 0 or network.counters.expected
        < network.counters.received + network.counters.written_off + load.backlog
    ):
        return False
    now = monotonic_ns()
    if now - load.last_delivery <= WRITE_OFF:
        return True
    network.counters.written_off = network.counters.expected - network.counters.received
    load.last_delivery = now
    return False


cdef inline uint8_t* put_next_message(
    Network* network, Publishing* load, Connection* connection, uint8_t* p, uint64_t now
) noexcept nogil:
    cdef PayloadHeader header
    cdef uint16_t packet_id = 0
    connection.sequence += 1
    header.run, header.publisher, header.unused = network.run_id, connection.index, 0
    header.topic = pick_topic(load.form.shape, connection.index, &connection.random)
    header.sequence, header.sent = connection.sequence, now
    network.counters.expected += deliveries(load.form.shape, header.topic)
    if load.form.qos:
        connection.free_count -= 1
        packet_id = connection.free_ids[connection.free_count]
        connection.in_flight[packet_id] = now
    return put_message(p, &load.form, &header, packet_id)


cdef inline uint32_t send_messages(
    Network* network, Publishing* load, Connection* connection, uint32_t max_messages, uint64_t now
) noexcept nogil:
    """Up to `max_messages` in one write; returns their number."""
    cdef uint64_t left = connection.quota - connection.sequence
    cdef uint32_t count = max_messages
    cdef uint8_t* p = load.outgoing
    cdef uint32_t i
    if connection.state != READY or connection.out_size:
        return 0
    if load.form.qos and count > connection.free_count:
        count = connection.free_count
    if count > left:
        count = <uint32_t>left
    if count == 0:
        return 0
    for i in range(count):
        p = put_next_message(network, load, connection, p, now)
    network.counters.published += count
    write(network, connection, load.outgoing, <size_t>(p - load.outgoing))
    return count


cdef inline uint64_t publish_on_time(Network* network, Publishing* load, uint64_t now) noexcept nogil:
    """Send the due messages, publishers in turn; skip blocked publishers."""
    cdef uint64_t due = <uint64_t>(<double>(now - load.started) * load.rate / 1e9) + 1
    cdef uint64_t at
    cdef uint32_t skipped = 0, sent
    while load.issued < due and skipped < load.form.shape.publishers:
        load.turn = (load.turn + 1) % load.form.shape.publishers
        at = due - load.issued
        sent = send_messages(
            network, load, &load.publishers[load.turn],
            <uint32_t>(at if at < load.batch else load.batch), monotonic_ns())
        skipped = 0 if sent else skipped + 1
        if sent:
            at = load.started + <uint64_t>(load.issued / load.rate * 1e9)
            network.counters.late = max(network.counters.late, now - at if now > at else 0)
        load.issued += sent
    if skipped:
        return 1000000
    at = load.started + <uint64_t>(load.issued / load.rate * 1e9)
    now = monotonic_ns()
    return at - now if at > now else 0


cdef inline uint64_t publish(Network* network, Publishing* load, uint64_t now) noexcept nogil:
    """Send the messages that may be sent now; returns for how many ns the loop may sleep."""
    cdef uint32_t tried = 0, writes, count = load.active_count
    cdef Connection* connection
    if load.rate > 0:
        return publish_on_time(network, load, now)
    while tried < count:
        if load.turn >= load.active_count:
            load.turn = 0
        connection = load.active[load.turn]
        writes = 0
        while writes < WRITES_PER_TURN:
            if must_wait(network, load):
                return 10000000
            if send_messages(network, load, connection, load.batch, monotonic_ns()) == 0:
                break
            writes += 1
        if writes < WRITES_PER_TURN:  # blocked or finished; an event makes it active again
            connection.active = False
            load.active_count -= 1
            load.active[load.turn] = load.active[load.active_count]
        else:
            load.turn += 1
        tried += 1
    return 0 if load.active_count else 10000000
