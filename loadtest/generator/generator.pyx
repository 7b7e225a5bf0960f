# distutils: libraries = ssl crypto
"""One process's clients of a broker: many connections, one epoll loop without the GIL, MQTT 3.1.1 or 5.0.

The generator has phases, connections and counters. The duration of a phase, the broker's CPU time and the judgement of
a run are in `runs`. `run` works in one phase for a bounded time and returns. Nothing raises once the loop runs: a
connection that fails is closed and counted, and the first reason is kept for the report.
"""

from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.time cimport timespec
from posix.unistd cimport close, read

from ..._speedups.codec.tables cimport (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
)
from ..._speedups.net.openssl cimport (
    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
    SSL_MODE_ENABLE_PARTIAL_WRITE,
    SSL_CTX_free,
    SSL_CTX_new,
    SSL_CTX_set_mode,
    SSL_CTX_set_read_ahead,
    TLS_client_method,
)
from ..._speedups.net.posix cimport (
    EPOLL_CLOEXEC,
    EPOLLERR,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    epoll_create1,
    epoll_event,
    epoll_wait,
)
from .checker cimport Stream
from .client_packets cimport (
    ALIAS_SIZE,
    CONNECT_SIZE,
    FILTERS_PER_PACKET,
    PUBLISH_OVERHEAD,
    SUBSCRIBE_SIZE,
    SUBSCRIBER_ALIASES,
    TOPIC_ALIAS,
    ConnectFields,
    connack_receive_maximum,
    put_connect,
    put_subscribe,
)
from .connection cimport (
    AF_INET,
    AWAIT_CONNACK,
    AWAIT_SUBACK,
    CLOSED,
    CLOSING,
    DIALING,
    IDLE,
    OPENING,
    PUBLISHER,
    READ_SIZE,
    READY,
    RECONNECT,
    SUBSCRIBER,
    TAKEOVER,
    Connection,
    Network,
    become_ready,
    dial,
    fail,
    flush,
    free_connection,
    hang_up,
    htonl,
    htons,
    is_connected,
    is_open,
    make_room,
    watch,
    write,
)
from .subscribers cimport Subscribers, free_subscribers, prepare_subscribers, release_identifier, serve_subscribers
from .publishing cimport Publishing, activate, outstanding, prepare_publisher, publish
from .receiving cimport BUCKETS, Receiving, add_latency, handle_acknowledgement, handle_publish, reply
from .shapes cimport (
    FANOUT,
    METRICS,
    PAIRS,
    SHARED,
    WILD,
    Shape,
    count_filters,
    filter_count,
    free_shape,
    set_prefix,
)
from .takeover cimport (
    TIME_LIMIT,
    TakeOvers,
    begin_take_overs,
    check_take_overs,
    is_taken_over,
)
from .transport cimport raw_read, unframe
from .wire cimport get_frame, get_uint16, monotonic_ns, put_bytes, put_length, put_uint16

from .settings import SHAPES

cdef extern from "<sys/timerfd.h>" nogil:
    enum: TFD_CLOEXEC
    enum: TFD_NONBLOCK
    enum: TFD_TIMER_ABSTIME
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec* new, itimerspec* old)

cdef extern from "<time.h>" nogil:
    enum: CLOCK_MONOTONIC

cdef enum:
    SLACK = 1024                # max. bytes of an expected packet beside its payload
    EVENTS = 512                # of one epoll_wait
    STALL = 20 * 1000000        # ns; a longer turn counts as a stall of this process

cpdef enum:  # Generator.phase, the argument of `run`
    CONNECTING = 0  # done when every connection is ready or has failed
    PUBLISHING = 1  # done when `count` messages are sent
    DRAINING = 2    # done when nothing is outstanding
    HOLDING = 3     # only pings
    RECONNECTING = 4  # RECONNECT connections connect and disconnect
    TAKING_OVER = 5  # clients of TAKEOVER connections are taken over


cdef uint8_t* put_field(uint8_t* p, bytes text):
    """A text after its length."""
    return put_bytes(put_uint16(p, <uint32_t>len(text)), <const char*>text, len(text))


cdef object set_network(Network* network, object settings):
    """Fill in the network; returns the HTTP request of WebSocket, or None."""
    cdef int which
    target = settings.target
    addresses = settings.addresses
    ports = [target.port, target.publish_port or target.port, *(port for _, port in target.more_hosts)]
    network.nodes = <uint32_t>(1 + len(target.more_hosts))
    for which in range(<int>len(ports)):
        network.targets[which].sin_family = AF_INET
        network.targets[which].sin_port = htons(<uint16_t>ports[which])
        network.targets[which].sin_addr.s_addr = htonl(<uint32_t>addresses[which])
    network.local = all(address >> 24 == 127 for address in addresses)
    network.run_id = settings.run_id
    if target.transport in ("mqtts", "wss"):
        network.tls = SSL_CTX_new(TLS_client_method())
        if network.tls == NULL:
            raise MemoryError
        SSL_CTX_set_mode(network.tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER)
        SSL_CTX_set_read_ahead(network.tls, 1)
    if target.transport in ("ws", "wss"):
        return (
            f"GET {target.path} HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        ).encode()
    return None


cdef object set_fields(ConnectFields* fields, object settings):
    cdef bytes prefix = settings.client_prefix.encode("ascii")
    cdef uint8_t* end
    target = settings.target
    fields.level = target.level
    fields.aliases = SUBSCRIBER_ALIASES if settings.workload.alias in ("out", "both") else 0
    fields.clean_session = not settings.workload.persistent
    fields.keep_alive = settings.keep_alive
    fields.prefix_size = <uint32_t>len(prefix)
    memcpy(fields.prefix, <const char*>prefix, len(prefix))
    if target.username:
        end = put_field(put_field(fields.login, target.username.encode()), target.password.encode())
        fields.login_size = <uint32_t>(end - fields.login)
        fields.login_flags = 0xC0
    return None


cdef object set_shape(Shape* shape, object load):
    cdef bytes prefix = load.topic_prefix.encode("ascii")
    cdef uint32_t side
    set_prefix(shape, prefix, len(prefix))
    shape.kind = SHAPES.index(load.shape)
    shape.publishers, shape.subscribers, shape.filters = load.publishers, load.subscribers, load.filters
    if shape.kind != WILD:
        shape.topics = 1 if shape.kind == FANOUT else shape.publishers
        return None
    side = int((load.topics / METRICS) ** 0.5)
    if not 1 <= load.filters <= side:
        raise ValueError(f"with {load.topics} topics a subscriber has 1 to {side} filters")
    shape.sites = shape.devices = side
    shape.topics = side * side * METRICS
    if count_filters(shape):
        raise MemoryError
    return None


cdef object set_publishing(Publishing* publishing, const Shape* shape, object load):
    publishing.form.shape = shape
    publishing.form.qos, publishing.form.payload, publishing.batch = load.qos, load.payload, load.batch
    publishing.window, publishing.backlog = load.window, load.backlog
    publishing.count, publishing.rate = load.count, load.rate
    return None


cdef object set_properties(Publishing* publishing, Receiving* receiving, object settings):
    """The properties of level 5: one user property that fills the block, or none; and perhaps a topic alias."""
    cdef uint32_t bytes_ = settings.workload.properties
    cdef uint8_t* p
    receiving.level, receiving.with_identifiers = settings.target.level, settings.workload.ids
    receiving.with_aliases = settings.workload.alias in ("out", "both")
    publishing.form.has_alias = settings.workload.alias in ("in", "both")
    receiving.properties = bytes_
    if settings.target.level < 5:
        return None
    publishing.form.properties = <uint8_t*>malloc(4 + bytes_ + ALIAS_SIZE)
    if publishing.form.properties == NULL:
        raise MemoryError
    p = put_length(publishing.form.properties, bytes_ + (ALIAS_SIZE if publishing.form.has_alias else 0))
    if bytes_:
        p = put_uint16(put_bytes(p, b"\x26\x00\x04load", 7), bytes_ - 9)
        memset(p, c"x", bytes_ - 9)
        p += bytes_ - 9
    if publishing.form.has_alias:
        p[0] = TOPIC_ALIAS
        p = put_uint16(p + 1, 1)
    publishing.form.properties_size = <uint32_t>(p - publishing.form.properties)
    return None


cdef object set_receiving(Receiving* receiving, const Shape* shape, object load):
    receiving.shape = shape
    receiving.qos, receiving.payload, receiving.window = load.qos, load.payload, load.window
    receiving.stream_count = 1 if shape.kind == PAIRS else shape.publishers
    return None


cdef object set_subscribers(Subscribers* subscribers, const Shape* shape, object load):
    subscribers.count, subscribers.publishers, subscribers.qos = shape.subscribers, shape.publishers, load.qos
    subscribers.slow, subscribers.dying = load.slow, load.dying
    subscribers.period = <uint64_t>(1e9 / load.slow_rate)
    subscribers.every, subscribers.away = <uint64_t>(load.dies_every * 1e9), <uint64_t>(load.away * 1e9)
    if prepare_subscribers(subscribers):
        raise MemoryError
    return None


cdef class Generator:
    """Clients of one broker.

    Args:
        settings: a `Settings`.
    """

    cdef:
        Shape shape
        Network network
        ConnectFields fields
        Publishing publishing
        Receiving receiving
        TakeOvers take_overs
        Subscribers subscribers             # SHARED
        int qos, timer, phase
        bytes request               # of WebSocket; network.request points into it
        bint subscribe
        uint32_t longest            # bytes of payload and properties of a message
        uint32_t reconnects, parallel, total
        Connection* connections     # subscribers, publishers, IDLE, TAKEOVER (two for each client), RECONNECT
        uint32_t next_dial, next_ping
        uint8_t* incoming           # one read, behind the rest of the one before
        uint64_t started            # ns, of the phase
        uint64_t pinged             # pings sent in the phase
        uint64_t last_turn          # ns
        uint64_t may_sleep          # ns, requested in that turn

    def __cinit__(self):
        self.network.epoll = self.timer = -1

    def __init__(self, settings):
        if self.connections != NULL:
            raise RuntimeError("a generator is initialised once")
        load = settings.workload
        self.qos = load.qos
        self.subscribe, self.parallel = settings.subscribe, settings.parallel
        self.reconnects, self.total = settings.reconnect, settings.connections
        self.phase = -1
        self.request = set_network(&self.network, settings)
        if self.request is not None:
            self.network.request = self.request
        set_fields(&self.fields, settings)
        set_shape(&self.shape, load)
        set_publishing(&self.publishing, &self.shape, load)
        set_receiving(&self.receiving, &self.shape, load)
        if self.shape.kind == SHARED:
            set_subscribers(&self.subscribers, &self.shape, load)
            self.receiving.subscribers = &self.subscribers
        set_properties(&self.publishing, &self.receiving, settings)
        self.longest = load.payload + load.properties
        self.receiving.last_delivery = &self.publishing.last_delivery
        self.make_buffers()
        self.make_connections(settings.idle, settings.take_over)
        self.network.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if self.network.epoll < 0 or self.timer < 0 or not watch(&self.network, self.timer, NULL):
            raise OSError(errno, "cannot create epoll and timer")

    cdef object make_buffers(self):
        cdef Publishing* load = &self.publishing
        cdef uint32_t i
        self.incoming = <uint8_t*>malloc(READ_SIZE + self.longest + SLACK)
        self.receiving.replies = <uint8_t*>malloc(READ_SIZE + self.longest + SLACK)  # no reply is longer than its cause
        load.outgoing = <uint8_t*>malloc(<size_t>load.batch * (self.longest + PUBLISH_OVERHEAD))
        load.form.filler = <uint8_t*>malloc(load.form.payload)
        self.receiving.histogram = <uint64_t*>calloc(BUCKETS, sizeof(uint64_t))
        load.active = <Connection**>calloc(self.shape.publishers + 1, sizeof(void*))
        if (
            self.incoming == NULL or self.receiving.replies == NULL or load.outgoing == NULL or load.form.filler == NULL
            or self.receiving.histogram == NULL or load.active == NULL
        ):
            raise MemoryError
        for i in range(load.form.payload):
            load.form.filler[i] = <uint8_t>(97 + i % 26)
        return None

    cdef object make_connections(self, uint32_t idle, uint32_t take_over):
        cdef uint32_t slot, index
        cdef Connection* connection
        cdef Shape* shape = &self.shape
        self.connections = <Connection*>calloc(self.total, sizeof(Connection))
        if self.connections == NULL:
            raise MemoryError
        self.take_overs.pairs = self.connections + shape.subscribers + shape.publishers + idle
        self.take_overs.clients, self.take_overs.rate = take_over, self.publishing.rate
        self.publishing.publishers = self.connections + shape.subscribers
        for slot in range(self.total):
            connection = &self.connections[slot]
            connection.fd = -1
            connection.slot = index = slot
            connection.role = SUBSCRIBER
            if index >= shape.subscribers:
                index -= shape.subscribers
                connection.role = PUBLISHER
                if index >= shape.publishers:
                    index -= shape.publishers
                    connection.role = IDLE
                    if index >= idle:
                        index -= idle
                        connection.role = TAKEOVER
                        if index >= 2 * take_over:
                            index -= 2 * take_over
                            connection.role = RECONNECT
            connection.target = connection.role == PUBLISHER
            if connection.role == TAKEOVER:
                connection.target = index % 2
                index //= 2
            connection.index = index
            if connection.role == SUBSCRIBER:
                connection.target = <uint8_t>(index % self.network.nodes)
                if connection.target:  # the publishers' is between the first two
                    connection.target += 1
                connection.streams = <Stream*>calloc(self.receiving.stream_count, sizeof(Stream))
                if connection.streams == NULL:
                    raise MemoryError
            elif connection.role == PUBLISHER:
                if prepare_publisher(&self.publishing, connection):
                    raise MemoryError
        return None

    def __dealloc__(self):
        cdef uint32_t slot
        if self.connections != NULL:
            for slot in range(self.total):
                free_connection(&self.connections[slot])
        if self.network.epoll >= 0:
            close(self.network.epoll)
        if self.timer >= 0:
            close(self.timer)
        free(self.connections)
        free(self.publishing.active)
        free(self.incoming)
        free(self.publishing.outgoing)
        free(self.receiving.replies)
        free(self.publishing.form.filler)
        free(self.publishing.form.properties)
        free(self.receiving.histogram)
        free(self.network.framed)
        SSL_CTX_free(self.network.tls)
        free_subscribers(&self.subscribers)
        free_shape(&self.shape)

    # ---- called from Python

    def run(self, int phase, double seconds):
        """Work in `phase` for `seconds` at most; return whether the phase is done."""
        cdef uint64_t until
        cdef bint done
        if phase != self.phase:
            self.phase = phase
            self.started = self.last_turn = monotonic_ns()
            self.may_sleep = self.pinged = 0
            self.publishing.started = self.publishing.last_delivery = self.take_overs.started = self.started
            self.publishing.issued = self.take_overs.begun = 0
        until = monotonic_ns() + <uint64_t>(seconds * 1e9)
        with nogil:
            done = self.turns(until)
        return done

    def figures(self):
        """Return all counters since the start; times in nanoseconds."""
        return dict(self.network.counters, outstanding=outstanding(&self.network, &self.publishing))

    def first_error(self):
        """Return the reason why the first connection failed, or the empty string."""
        return self.network.error.decode("utf-8", "replace")

    def forget_latencies(self):
        """Leave out of the latencies all messages sent up to now."""
        self.receiving.latency_from = monotonic_ns()
        memset(self.receiving.histogram, 0, BUCKETS * sizeof(uint64_t))

    def latencies(self):
        """Return the deliveries since `forget_latencies` by their latency: nanoseconds (the middle of a bucket) ->
        number."""
        cdef int bucket, power
        found = {}
        for bucket in range(BUCKETS):
            if self.receiving.histogram[bucket]:
                power = bucket // 64 - 1
                middle = float(bucket) if bucket < 128 else (bucket - power * 64 + 0.5) * 2.0 ** power
                found[middle] = self.receiving.histogram[bucket]
        return found

    def group_received(self):
        """Return how many messages each subscriber of a shared subscription got: slow ones, dying ones, the others."""
        cdef uint32_t index
        return [self.subscribers.all[index].received for index in range(self.subscribers.count)]

    def disconnect(self):
        """Send DISCONNECT on every connection that is ready and close all."""
        cdef uint32_t slot
        cdef Connection* connection
        for slot in range(self.total):
            connection = &self.connections[slot]
            if connection.state == READY:
                write(&self.network, connection, <const uint8_t*>b"\xe0\x00", 2)
            if connection.fd >= 0:
                hang_up(&self.network, connection)

    # ---- the loop; from here on there is no GIL

    cdef bint turns(self, uint64_t until) noexcept nogil:
        cdef epoll_event[EVENTS] events
        cdef Connection* connection
        cdef uint64_t now, sleep
        cdef int count, i, wait
        if self.phase == RECONNECTING:
            self.start_reconnects()
        elif self.phase == TAKING_OVER:
            check_take_overs(&self.network, &self.take_overs)
        while True:
            now = monotonic_ns()
            self.note_stall(now)
            sleep = 10000000
            serve_subscribers(
                &self.network, &self.subscribers, self.connections, now, self.phase == PUBLISHING, self.network.nodes)
            if self.phase == CONNECTING:
                self.dial_more()
                if self.next_dial == self.total - self.reconnects and self.network.dialing == 0:
                    return True
            elif self.phase == PUBLISHING:
                sleep = publish(&self.network, &self.publishing, now)
                if self.publishing.count and self.network.counters.published >= self.publishing.count:
                    return True
                self.ping(now)
            elif self.phase == DRAINING:
                if outstanding(&self.network, &self.publishing) == 0:
                    return True
            elif self.phase == HOLDING:
                self.ping(now)
            elif self.phase == TAKING_OVER:
                sleep = begin_take_overs(&self.network, &self.take_overs, now)
            now = monotonic_ns()
            if now >= until:
                return False
            if sleep > until - now:
                sleep = until - now
            wait = <int>(sleep // 1000000)
            if sleep and wait == 0:     # shorter than epoll's resolution
                self.set_timer(now + sleep)
                wait = 1
            self.may_sleep = sleep
            self.last_turn = now
            count = epoll_wait(self.network.epoll, events, EVENTS, wait)
            for i in range(count):
                connection = <Connection*>events[i].data.ptr
                if connection == NULL:
                    read(self.timer, self.incoming, 8)
                elif connection.fd >= 0:
                    self.handle_event(connection, events[i].events)

    cdef void note_stall(self, uint64_t now) noexcept nogil:
        """Count a turn that took longer than its sleep and any possible work."""
        cdef uint64_t taken = now - self.last_turn
        if taken > self.may_sleep + STALL:
            taken -= self.may_sleep
            self.network.counters.stalls += 1
            self.network.counters.stalled += taken
            self.network.counters.longest_stall = max(self.network.counters.longest_stall, taken)

    cdef void set_timer(self, uint64_t at) noexcept nogil:
        cdef itimerspec when
        memset(&when, 0, sizeof(when))
        when.it_value.tv_sec = at // 1000000000
        when.it_value.tv_nsec = at % 1000000000
        timerfd_settime(self.timer, TFD_TIMER_ABSTIME, &when, NULL)

    # ---- connections

    cdef void dial_more(self) noexcept nogil:
        """Begin to connect, but not the second connection of a TAKEOVER pair: it is for the first take-over."""
        cdef Connection* connection
        while self.next_dial < self.total - self.reconnects and self.network.dialing < self.parallel:
            connection = &self.connections[self.next_dial]
            self.next_dial += 1
            if connection.role != TAKEOVER or connection.target == 0:
                dial(&self.network, connection)

    cdef void start_reconnects(self) noexcept nogil:
        """Dial RECONNECT connections without a socket, and fail those beyond the time limit."""
        cdef uint32_t slot
        cdef Connection* connection
        cdef uint64_t now = monotonic_ns()
        for slot in range(self.total - self.reconnects, self.total):
            connection = &self.connections[slot]
            if connection.fd >= 0 and now - connection.dialed > <uint64_t>TIME_LIMIT * 1000000000:
                fail(&self.network, connection, "took too long", 0)
            if connection.fd < 0:
                dial(&self.network, connection)

    cdef void handle_event(self, Connection* connection, uint32_t events) noexcept nogil:
        if connection.state == DIALING:
            if not is_connected(&self.network, connection, events):
                return
            connection.state = OPENING
        if connection.state == OPENING:
            if is_open(&self.network, connection, self.incoming):
                connection.state = AWAIT_CONNACK
                connection.dialed = monotonic_ns()
                self.send_connect(connection)
            if connection.state == OPENING:
                return
        elif events & EPOLLOUT and connection.out_size:
            flush(&self.network, connection)
        if connection.fd >= 0 and events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            self.receive(connection, (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        if connection.role == PUBLISHER:
            activate(&self.publishing, connection)

    cdef void send_connect(self, Connection* connection) noexcept nogil:
        cdef uint8_t[CONNECT_SIZE] packet
        write(&self.network, connection, packet, <size_t>(put_connect(packet, &self.fields, connection) - packet))

    cdef void send_subscribe(self, Connection* connection, uint32_t filters) noexcept nogil:
        cdef uint8_t[SUBSCRIBE_SIZE] packet
        cdef uint8_t* end
        cdef uint8_t qos = <uint8_t>self.qos if connection.role == SUBSCRIBER else 0
        cdef uint32_t first = 0, count
        while first < filters:
            count = min(filters - first, <uint32_t>FILTERS_PER_PACKET)
            end = put_subscribe(
                packet, &self.shape, connection, first, count, qos, self.fields.level,
                self.receiving.with_identifiers and connection.role == SUBSCRIBER)
            write(&self.network, connection, packet, <size_t>(end - packet))
            first += count

    cdef void ping(self, uint64_t now) noexcept nogil:
        """Send the due PINGREQs: spread evenly, each connection one in three quarters of the keep alive."""
        cdef uint64_t due = <uint64_t>(<double>(now - self.started) / (self.fields.keep_alive * 0.75e9) * self.total)
        while self.pinged < due:
            self.pinged += 1
            self.next_ping = (self.next_ping + 1) % self.total
            if self.connections[self.next_ping].state == READY:
                self.network.counters.pings += 1
                write(&self.network, &self.connections[self.next_ping], <const uint8_t*>b"\xc0\x00", 2)

    # ---- reading

    cdef void receive(self, Connection* connection, bint to_the_end) noexcept nogil:
        cdef uint8_t* p
        cdef uint8_t* end
        cdef ssize_t count, raw
        cdef uint32_t header = 0, body = 0
        cdef int whole
        cdef uint64_t now
        while True:
            if connection.tail_size:
                memcpy(self.incoming, connection.tail, connection.tail_size)
            count = raw = raw_read(
                &connection.transport, connection.fd, self.incoming + connection.tail_size, READ_SIZE)
            if count < 0 and errno == EAGAIN:
                return
            if count <= 0:
                self.handle_end(connection, count)
                return
            if connection.transport.websocket:
                count = unframe(&connection.transport, self.incoming + connection.tail_size, <size_t>count)
            self.network.counters.reads += 1
            now = monotonic_ns()
            p = self.incoming
            end = p + connection.tail_size + count
            self.receiving.reply_size = 0
            while True:
                whole = get_frame(p, end, &header, &body)
                if whole != 1:
                    break
                self.handle_packet(connection, p[0], p + header, body, now)
                if connection.fd < 0:
                    return
                p += header + body
            connection.tail_size = <size_t>(end - p)
            if whole < 0 or connection.tail_size >= self.longest + SLACK:
                fail(&self.network, connection, "a packet is too long", 0)
                return
            if connection.tail_size:
                if not make_room(&connection.tail, &connection.tail_room, connection.tail_size):
                    fail(&self.network, connection, "out of memory", errno)
                    return
                memcpy(connection.tail, p, connection.tail_size)
            if self.receiving.reply_size:
                write(&self.network, connection, self.receiving.replies, self.receiving.reply_size)
                if connection.fd < 0:
                    return
            if raw < READ_SIZE and not to_the_end:
                return

    cdef void handle_end(self, Connection* connection, ssize_t count) noexcept nogil:
        if connection.state == CLOSING and count == 0:
            self.network.counters.cycles += 1
            hang_up(&self.network, connection)
            if self.phase == RECONNECTING:
                dial(&self.network, connection)
            return
        if connection.role == TAKEOVER and is_taken_over(connection):
            hang_up(&self.network, connection)
            return
        fail(&self.network, connection, "closed by the broker", errno if count else 0)

    cdef void handle_packet(
        self, Connection* connection, uint8_t first, const uint8_t* body, uint32_t size, uint64_t now
    ) noexcept nogil:
        cdef uint32_t kind = first >> 4
        cdef uint32_t packet_id = get_uint16(body) if size >= 2 else 0
        cdef uint32_t reason_code = body[2] if size > 2 else 0     # of acknowledgements, level 5
        if kind == PUBLISH:
            handle_publish(&self.network, &self.receiving, connection, first, body, size, now)
        elif kind == PUBACK or kind == PUBREC or kind == PUBCOMP:
            handle_acknowledgement(&self.network, &self.receiving, connection, kind, packet_id, reason_code)
        elif kind == PUBREL and (size == 2 or (self.fields.level == 5 and size > 2)):
            reply(&self.receiving, PUBCOMP << 4, packet_id)
            if connection.role == SUBSCRIBER:
                release_identifier(&self.subscribers, connection.index, packet_id)
        elif kind == CONNACK:
            self.handle_connack(connection, body, size)
        elif kind == SUBACK:
            self.handle_suback(connection, body, size)
        elif kind == PINGRESP:
            self.network.counters.pongs += 1
        elif kind == DISCONNECT and self.fields.level == 5:
            pass                                # the end of the connection follows
        else:
            self.network.counters.malformed += 1

    cdef void handle_connack(self, Connection* connection, const uint8_t* body, uint32_t size) noexcept nogil:
        cdef uint32_t filters
        if connection.state != AWAIT_CONNACK or size < 2 or body[1] != 0 or (size > 2) != (self.fields.level == 5):
            fail(&self.network, connection, "CONNACK refuses or is malformed", 0)
            return
        if connection.role == PUBLISHER and self.fields.level == 5:
            # The identifiers beyond the broker's Receive Maximum are never used [5: MQTT-3.3.4-7].
            connection.free_count = min(connection.free_count, connack_receive_maximum(body, size))
        if connection.role == RECONNECT:
            connection.state = CLOSING
            self.network.dialing -= 1
            write(&self.network, connection, <const uint8_t*>b"\xe0\x00", 2)
            return
        if connection.role == TAKEOVER and connection.taking_over:
            self.network.counters.cycles += 1
            add_latency(&self.receiving, monotonic_ns() - connection.dialed)
        if self.returns(connection):
            if body[0] & 1:
                become_ready(&self.network, connection)
            else:
                fail(&self.network, connection, "the session of a dying subscriber is lost", 0)
            return
        if connection.role == SUBSCRIBER or (
            self.subscribe and (connection.role == IDLE or connection.role == TAKEOVER and not body[0] & 1)
        ):
            filters = filter_count(&self.shape) if connection.role == SUBSCRIBER else 1
            connection.state = AWAIT_SUBACK
            connection.subacks_due = (filters + FILTERS_PER_PACKET - 1) // FILTERS_PER_PACKET
            self.send_subscribe(connection, filters)
        else:
            become_ready(&self.network, connection)

    cdef bint returns(self, Connection* connection) noexcept nogil:
        """Whether this is a subscriber whose connection was cut, and whose session is persistent."""
        return (
            self.subscribers.all != NULL and connection.role == SUBSCRIBER and not self.fields.clean_session
            and self.subscribers.all[connection.index].connection > 0
        )

    cdef void handle_suback(self, Connection* connection, const uint8_t* body, uint32_t size) noexcept nogil:
        cdef uint32_t i, first = 2
        if self.fields.level == 5 and size > 3:
            first = 3 + body[2]                 # a property block above 127 bytes belongs to a refusal
        if connection.state != AWAIT_SUBACK or size <= first:
            fail(&self.network, connection, "SUBACK is unexpected or malformed", 0)
            return
        for i in range(first, size):
            if body[i] != (self.qos if connection.role == SUBSCRIBER else 0):
                fail(&self.network, connection, "SUBACK refuses or grants another QoS", 0)
                return
        connection.subacks_due -= 1
        if connection.subacks_due == 0:
            become_ready(&self.network, connection)
