# distutils: libraries = ssl crypto
"""One process's clients of a broker: many connections, one epoll loop without the GIL, MQTT 3.1.1.

The generator knows phases, connections and counters; it does not know how long a phase lasts, what the broker's CPU time
is, or what makes a run good: `loadtest.load` does. `run` works in one phase for a bounded time and returns.

Rules: a connection is edge-triggered, so it is read until a short read and written until EAGAIN. What the socket did
not take waits in `Connection.out`, and while something waits the publisher does not publish. Nothing here raises once
the loop runs: a connection that fails is closed and counted, and the first reason is kept for the report.
"""

from ipaddress import AddressValueError, IPv4Address

from libc.errno cimport EAGAIN, EINPROGRESS, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strerror, strlen
from posix.time cimport timespec
from posix.unistd cimport close, read

from _speedups.net.openssl cimport (
    SSL_CTX,
    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
    SSL_MODE_ENABLE_PARTIAL_WRITE,
    SSL_CTX_free,
    SSL_CTX_new,
    SSL_CTX_set_mode,
    SSL_CTX_set_read_ahead,
    TLS_client_method,
)
from loadtest.generator.checker cimport DUPLICATE, IN_ORDER, Stream, observe
from loadtest.generator.shapes cimport (
    FANOUT,
    METRICS,
    PAIRS,
    PREFIX_SIZE,
    TOPIC_SIZE,
    WILD,
    Shape,
    deliveries,
    filter_count,
    filter_number,
    is_subscribed,
    pick_topic,
    put_filter,
    put_topic,
    subscriber_kind,
)
from loadtest.generator.transport cimport (
    HEAD_MOST,
    Transport,
    put_head,
    raw_read,
    transport_free,
    transport_open,
    transport_send,
    unframe,
)
from loadtest.generator.wire cimport (
    CONNACK,
    CONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    get_frame,
    get_uint16,
    monotonic_ns,
    put_bytes,
    put_decimal,
    put_length,
    put_uint16,
)

cdef extern from "<sys/socket.h>" nogil:
    enum: AF_INET
    enum: SOCK_CLOEXEC
    enum: SOCK_NONBLOCK
    enum: SOCK_STREAM
    enum: SOL_SOCKET
    enum: SO_ERROR
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    int socket(int domain, int kind, int protocol)
    int bind(int fd, const sockaddr *address, socklen_t size)
    int connect(int fd, const sockaddr *address, socklen_t size)
    int setsockopt(int fd, int level, int option, const void *value, socklen_t size)
    int getsockopt(int fd, int level, int option, void *value, socklen_t *size)

cdef extern from "<netinet/in.h>" nogil:
    enum: IPPROTO_IP
    enum: IPPROTO_TCP
    enum: IP_BIND_ADDRESS_NO_PORT
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        uint16_t sin_family
        uint16_t sin_port
        in_addr sin_addr
    uint32_t htonl(uint32_t value)
    uint16_t htons(uint16_t value)

cdef extern from "<netinet/tcp.h>" nogil:
    enum: TCP_NODELAY

cdef extern from "<sys/epoll.h>" nogil:
    enum: EPOLLERR
    enum: EPOLLET
    enum: EPOLLHUP
    enum: EPOLLIN
    enum: EPOLLOUT
    enum: EPOLLRDHUP
    enum: EPOLL_CLOEXEC
    enum: EPOLL_CTL_ADD
    ctypedef union epoll_data_t:
        void *ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int most, int milliseconds)

cdef extern from "<sys/timerfd.h>" nogil:
    enum: TFD_CLOEXEC
    enum: TFD_NONBLOCK
    enum: TFD_TIMER_ABSTIME
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new, itimerspec *old)

cdef extern from "<time.h>" nogil:
    enum: CLOCK_MONOTONIC

cdef enum:
    READ_SIZE = 256 * 1024      # bytes asked for in one read
    SLACK = 1024                # bytes that the largest packet we expect may have beside its payload
    EVENTS = 512                # taken from epoll at once
    WRITES_PER_TURN = 8         # of one publisher, before the next one's turn
    FILTERS_PER_PACKET = 32     # in one SUBSCRIBE
    STAMP_SIZE = 32             # bytes; sizeof(Stamp), the least payload
    LOGIN_SIZE = 260            # user name and password, each after its length
    PORTS_PER_ADDRESS = 8000    # idle connections from one source address
    CYCLE_ADDRESSES = 100       # source addresses of cyclers, so that ports in TIME_WAIT don't stop them
    STALL = 20 * 1000000        # ns; a turn that took longer counts as a stall of this process
    WRITE_OFF = 1000 * 1000000  # ns without a delivery, after which outstanding ones no longer hold publishers back
    CYCLE_LIMIT = 5             # s that one connect, CONNACK, disconnect may take, and one take-over
    BUCKETS = 64 * 64           # latency histogram: 64 steps per power of two of ns, each 1.6 % wide

cdef enum:  # Connection.role
    PUBLISHER
    SUBSCRIBER
    IDLER       # connects, subscribes perhaps, pings
    HOPPER      # one of the two connections of a client that is taken over by the other, and back
    CYCLER      # connects, disconnects, again

cdef enum:  # Connection.state
    UNUSED
    DIALING         # connect() is under way
    OPENING         # handshakes of TLS and WebSocket
    CONNACK_DUE
    SUBACK_DUE
    READY
    CLOSING         # cycler: DISCONNECT sent, the broker closes
    CLOSED

cpdef enum:  # Generator.phase, the argument of `run`
    CONNECTING = 0  # done when every connection is ready or has failed
    PUBLISHING = 1  # done when `count` messages are sent
    DRAINING = 2    # done when nothing is outstanding
    HOLDING = 3     # only pings
    CYCLING = 4     # cyclers connect and disconnect
    HOPPING = 5     # hoppers' clients are taken over


cdef struct Stamp:              # the start of every payload, in this machine's byte order
    uint32_t run                # tells this run's messages from others'
    uint32_t publisher
    uint32_t topic
    uint32_t unused
    uint64_t sequence           # of the publisher, from 1
    uint64_t sent               # ns, CLOCK_MONOTONIC


cdef struct Connection:
    int fd                      # -1 while there is none
    uint8_t role
    uint8_t state
    bint active                 # publisher: stands in Generator.active
    uint32_t index              # within its role
    uint32_t slot               # among all connections; chooses the source address
    uint32_t subacks_due
    uint8_t target              # which of the broker's addresses; in Generator.targets
    bint taking                 # hopper: what is under way is a take-over, not the client's first connection
    Transport transport         # between socket and MQTT
    uint8_t *tail               # an incomplete packet; allocated only when one occurs
    size_t tail_size
    size_t tail_room
    uint8_t *out                # what the socket did not take, from out_start on; allocated only when that happens
    size_t out_start
    size_t out_size
    size_t out_room
    uint64_t dialed             # ns, when the last connect() began; from CONNECT on, when that was sent
    uint64_t sequence           # publisher: of its last message
    uint64_t quota              # publisher: messages it may send in all
    uint64_t random             # publisher: state of next_random
    uint64_t *in_flight         # publisher, QoS > 0: by packet identifier, when it was sent; 0 = free
    uint16_t *free_ids          # publisher, QoS > 0: a stack of `free_count` packet identifiers
    uint32_t free_count
    Stream *streams             # subscriber: one for each publisher it hears


cdef struct Counters:           # all since the start
    uint64_t ready, refused, closed
    uint64_t published, acknowledged, expected, received
    uint64_t duplicates, reordered, misrouted, foreign, malformed
    uint64_t written_off
    uint64_t writes, reads
    uint64_t pings, pongs
    uint64_t cycles, cycle_failures  # of hoppers: take-overs
    uint64_t late               # ns, most that a message was behind its time (rate)
    uint64_t stalls, stalled, longest_stall  # number; ns; ns


cdef extern from *:
    int __builtin_clzll(unsigned long long value) noexcept nogil


cdef inline uint32_t bucket_of(uint64_t value) noexcept nogil:
    cdef uint32_t power = 57 - <uint32_t> __builtin_clzll(value | 127)
    return power * 64 + <uint32_t> (value >> power)


cdef inline bint make_room(uint8_t **data, size_t *room, size_t need) noexcept nogil:
    cdef void *grown
    if need <= room[0]:
        return True
    grown = realloc(data[0], need * 2)
    if grown == NULL:
        return False
    data[0] = <uint8_t *> grown
    room[0] = need * 2
    return True


def ipv4(str host):
    """The address as a number. Raises ValueError."""
    try:
        return int(IPv4Address(host))
    except AddressValueError:
        raise ValueError(f"{host!r} is not an IPv4 address") from None


cdef uint8_t *put_field(uint8_t *at, bytes text):
    """A text after its length."""
    return put_bytes(put_uint16(at, <uint32_t> len(text)), <const char *> text, len(text))


cdef class Generator:
    """Clients of one broker.

    Args:
        host, port: the broker, by its IPv4 address.
        publish_host, publish_port: where publishers connect; "" and 0 are the same. Hoppers go to and fro.
        shape: "pairs", "fanout", "fanin" or "wild"; see `shapes.pxd`.
        publishers, subscribers: numbers of clients.
        topics, filters: of "wild": topics in all, filters per subscriber.
        qos: of PUBLISH and SUBSCRIBE.
        payload: bytes, at least 32.
        batch: messages per write.
        window: unacknowledged messages per publisher (QoS 1 and 2).
        backlog: deliveries outstanding at which publishers pause; 0 leaves it to TCP.
        rate: messages per second over all publishers, or take-overs over all hoppers; 0 is as fast as possible.
        count: messages to publish over all publishers; 0 is no limit.
        clean_session: as in CONNECT, of all clients.
        idlers: connections that only ping; `subscribe` gives each one subscription, and each hopper's client too.
        hoppers: clients that connect again and again while they are connected.
        cyclers: connections that connect and disconnect over and over.
        parallel: handshakes under way at once.
        keep_alive: seconds; a ping is sent after three quarters of it.
        client_prefix: at most 16 ASCII characters, the start of every client identifier.
        topic_prefix: at most 32 ASCII characters, the start of every topic name and filter.
        run_id: a 32-bit number that tells this run's messages from others'.
        transport: "mqtt" (TCP), "mqtts" (TLS, whatever certificate the broker shows), "ws" or "wss" (WebSocket).
        path: of WebSocket.
        username, password: of all clients; "" = they show none.
    """

    cdef:
        Shape shape
        Counters counters
        sockaddr_in targets[2]      # of subscribers and others; of publishers
        int qos, epoll, timer, keep_alive, phase
        SSL_CTX *secure             # NULL: plain text
        bytes request               # what WebSocket begins with; None: no WebSocket
        const char *asking          # the same; NULL
        uint8_t *framed             # one write, in a frame
        size_t framed_room
        bint clean_session, subscribe
        bint local                  # the broker is at 127.0.0.0/8: there are as many source addresses as one likes
        uint32_t payload, batch, window, cyclers, hoppers, parallel, run_id, total, prefix_size, stream_count
        uint64_t backlog, count
        double rate
        char prefix[17]
        uint8_t login[LOGIN_SIZE]   # user name and password, as in CONNECT
        uint32_t login_size
        uint8_t login_flags         # of CONNECT; 0 = there are none
        char error[192]             # why the first connection was lost; "" = none was
        Connection *connections     # subscribers, publishers, idlers, hoppers (two for each client), cyclers
        Connection **active         # publishers that may be able to send now (rate 0)
        uint32_t active_count, turn, dialing, next_dial, next_ping
        uint64_t dials
        uint8_t *incoming           # one read, behind what was left of the one before
        uint8_t *outgoing           # one write of a publisher
        uint8_t *replies            # acknowledgements that one read causes
        size_t reply_size
        uint8_t *filler             # payload bytes behind the stamp
        uint64_t started            # ns, of the phase
        uint64_t issued             # messages sent or take-overs begun since then (rate)
        uint64_t pinged             # pings since then
        uint64_t last_delivery      # ns
        uint64_t last_turn          # ns, and how long it meant to sleep
        uint64_t may_sleep
        uint64_t latency_from       # ns; messages sent earlier are not in the histogram
        uint64_t *histogram         # deliveries by latency; take-overs by the time from CONNECT to CONNACK

    def __cinit__(self):
        self.epoll = self.timer = -1

    def __init__(
        self, *, str host="127.0.0.1", int port, str shape="pairs", uint32_t publishers=0, uint32_t subscribers=0,
        uint32_t topics=1000000, uint32_t filters=50, int qos=0, uint32_t payload=64, uint32_t batch=1, uint32_t window=20,
        uint64_t backlog=20000, double rate=0.0, uint64_t count=0, bint clean_session=True, uint32_t idlers=0,
        bint subscribe=False, uint32_t cyclers=0, uint32_t parallel=100, int keep_alive=60, str client_prefix="load",
        uint32_t run_id=0, str publish_host="", int publish_port=0, uint32_t hoppers=0, str topic_prefix="",
        str transport="mqtt", str path="/mqtt",
        str username="", str password="",
    ):
        cdef bytes prefix = client_prefix.encode("ascii")
        cdef bytes topics_begin = topic_prefix.encode("ascii")
        cdef bytes user = username.encode(), secret = password.encode()
        cdef int which
        if self.connections != NULL:
            raise RuntimeError("a generator is initialised once")
        if shape not in ("pairs", "fanout", "fanin", "wild"):
            raise ValueError(f"unknown shape {shape!r}")
        if shape == "pairs" and publishers != subscribers:
            raise ValueError("pairs need as many publishers as subscribers")
        if not 0 <= qos <= 2 or not 1 <= window <= 65535 or not 1 <= batch <= 65536 or not 1 <= port <= 65535:
            raise ValueError("qos, window, batch or port is out of range")
        if not 0 <= publish_port <= 65535:
            raise ValueError("publish_port is out of range")
        if not STAMP_SIZE <= payload <= 1 << 24 or keep_alive < 1 or parallel < 1 or rate < 0:
            raise ValueError("payload (at least 32 bytes), keep_alive, parallel or rate is out of range")
        if len(prefix) > 16 or len(topics_begin) > PREFIX_SIZE:
            raise ValueError("client_prefix is longer than 16 characters, or topic_prefix than 32")
        if len(user) + len(secret) > LOGIN_SIZE - 4 or (secret and not user):
            raise ValueError("username and password are longer than 256 bytes, or there is a password alone")
        self.total = publishers + subscribers + idlers + 2 * hoppers + cyclers
        if not 1 <= self.total <= 1000000:
            raise ValueError("the number of connections is out of range")
        for which in range(2):
            self.targets[which].sin_family = AF_INET
            self.targets[which].sin_port = htons(<uint16_t> (publish_port if which and publish_port else port))
            self.targets[which].sin_addr.s_addr = htonl(<uint32_t> ipv4(publish_host or host if which else host))
        self.local = ipv4(host) >> 24 == 127 and ipv4(publish_host or host) >> 24 == 127
        self.qos, self.payload, self.batch, self.window = qos, payload, batch, window
        self.backlog, self.rate, self.count = backlog, rate, count
        self.clean_session, self.subscribe = clean_session, subscribe
        self.cyclers, self.hoppers, self.parallel = cyclers, hoppers, parallel
        self.keep_alive, self.run_id = keep_alive, run_id
        self.prefix_size = <uint32_t> len(prefix)
        memcpy(self.prefix, <const char *> prefix, len(prefix))
        if user:
            self.login_size = <uint32_t> (put_field(put_field(self.login, user), secret) - self.login)
            self.login_flags = 0xC0
        self.phase = -1
        self.make_transport(transport, path)
        self.make_shape(("pairs", "fanout", "fanin", "wild").index(shape), publishers, subscribers, topics, filters, topics_begin)
        self.make_buffers()
        self.make_connections(idlers)
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if self.epoll < 0 or self.timer < 0 or not self.watch(self.timer, NULL):
            raise OSError(errno, "cannot make epoll and timer")

    cdef object make_shape(
        self, int kind, uint32_t publishers, uint32_t subscribers, uint32_t topics, uint32_t filters, bytes prefix
    ):
        cdef Shape *shape = &self.shape
        cdef uint16_t *tables[3]
        cdef uint32_t subscriber, which, side
        shape.prefix_size = len(prefix)
        memcpy(shape.prefix, <const char *> prefix, len(prefix))
        shape.kind, shape.publishers, shape.subscribers, shape.filters = kind, publishers, subscribers, filters
        if kind != WILD:
            shape.topics = 1 if kind == FANOUT else publishers
            return None
        side = int((topics / METRICS) ** 0.5)
        if not 1 <= filters <= side:
            raise ValueError(f"with {topics} topics a subscriber has 1 to {side} filters")
        shape.sites = shape.devices = side
        shape.topics = side * side * METRICS
        shape.of_device = <uint16_t *> calloc(side, sizeof(uint16_t))
        shape.of_metric = <uint16_t *> calloc(side * METRICS, sizeof(uint16_t))
        shape.of_station = <uint16_t *> calloc(<size_t> side * side, sizeof(uint16_t))
        if shape.of_device == NULL or shape.of_metric == NULL or shape.of_station == NULL:
            raise MemoryError
        tables[0], tables[1], tables[2] = shape.of_device, shape.of_metric, shape.of_station
        for subscriber in range(subscribers):
            for which in range(filters):
                tables[subscriber_kind(shape, subscriber)][filter_number(shape, subscriber, which)] += 1
        return None

    cdef object make_transport(self, str transport, str path):
        if transport not in ("mqtt", "mqtts", "ws", "wss"):
            raise ValueError(f"unknown transport {transport!r}")
        if transport in ("mqtts", "wss"):
            self.secure = SSL_CTX_new(TLS_client_method())
            if self.secure == NULL:
                raise MemoryError
            SSL_CTX_set_mode(self.secure, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER)
            SSL_CTX_set_read_ahead(self.secure, 1)
        if transport in ("ws", "wss"):
            self.request = (
                f"GET {path} HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
            ).encode()
            self.asking = self.request
        return None

    cdef object make_buffers(self):
        cdef uint32_t i
        self.incoming = <uint8_t *> malloc(READ_SIZE + self.payload + SLACK)
        self.replies = <uint8_t *> malloc(READ_SIZE + self.payload + SLACK)  # no reply is longer than its cause
        self.outgoing = <uint8_t *> malloc(<size_t> self.batch * (self.payload + TOPIC_SIZE + 16))
        self.filler = <uint8_t *> malloc(self.payload)
        self.histogram = <uint64_t *> calloc(BUCKETS, sizeof(uint64_t))
        self.active = <Connection **> calloc(self.shape.publishers + 1, sizeof(void *))
        if (
            self.incoming == NULL or self.replies == NULL or self.outgoing == NULL or self.filler == NULL
            or self.histogram == NULL or self.active == NULL
        ):
            raise MemoryError
        for i in range(self.payload):
            self.filler[i] = <uint8_t> (97 + i % 26)
        return None

    cdef object make_connections(self, uint32_t idlers):
        cdef uint32_t slot, index, identifier
        cdef Connection *connection
        cdef Shape *shape = &self.shape
        self.connections = <Connection *> calloc(self.total, sizeof(Connection))
        if self.connections == NULL:
            raise MemoryError
        self.stream_count = 1 if shape.kind == PAIRS else shape.publishers
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
                    connection.role = IDLER
                    if index >= idlers:
                        index -= idlers
                        connection.role = HOPPER
                        if index >= 2 * self.hoppers:
                            index -= 2 * self.hoppers
                            connection.role = CYCLER
            connection.target = connection.role == PUBLISHER
            if connection.role == HOPPER:
                connection.target = index % 2
                index //= 2
            connection.index = index
            if connection.role == SUBSCRIBER:
                connection.streams = <Stream *> calloc(self.stream_count, sizeof(Stream))
                if connection.streams == NULL:
                    raise MemoryError
            elif connection.role == PUBLISHER:
                connection.quota = <uint64_t> -1
                if self.count:
                    connection.quota = self.count // shape.publishers + (index < self.count % shape.publishers)
                connection.random = (<uint64_t> index + 1) * <uint64_t> 0x9E3779B97F4A7C15
                if self.qos:
                    connection.in_flight = <uint64_t *> calloc(self.window + 1, sizeof(uint64_t))
                    connection.free_ids = <uint16_t *> calloc(self.window, sizeof(uint16_t))
                    if connection.in_flight == NULL or connection.free_ids == NULL:
                        raise MemoryError
                    for identifier in range(self.window):
                        connection.free_ids[identifier] = <uint16_t> (self.window - identifier)
                    connection.free_count = self.window
        return None

    def __dealloc__(self):
        cdef uint32_t slot
        cdef Connection *connection
        if self.connections != NULL:
            for slot in range(self.total):
                connection = &self.connections[slot]
                if connection.fd >= 0:
                    close(connection.fd)
                transport_free(&connection.transport)
                free(connection.tail)
                free(connection.out)
                free(connection.in_flight)
                free(connection.free_ids)
                free(connection.streams)
        if self.epoll >= 0:
            close(self.epoll)
        if self.timer >= 0:
            close(self.timer)
        free(self.connections)
        free(self.active)
        free(self.incoming)
        free(self.outgoing)
        free(self.replies)
        free(self.filler)
        free(self.framed)
        SSL_CTX_free(self.secure)
        free(self.histogram)
        free(self.shape.of_device)
        free(self.shape.of_metric)
        free(self.shape.of_station)

    # ---- what Python calls

    def run(self, int phase, double seconds):
        """Work in `phase` for `seconds` at most; return whether the phase is done."""
        cdef uint64_t until
        cdef bint done
        if phase != self.phase:
            self.phase = phase
            self.started = self.last_turn = monotonic_ns()
            self.may_sleep = self.issued = self.pinged = 0
            self.last_delivery = self.started
        until = monotonic_ns() + <uint64_t> (seconds * 1e9)
        with nogil:
            done = self.turns(until)
        return done

    def figures(self):
        """Return all counters since the start; times in nanoseconds."""
        return dict(self.counters, outstanding=self.outstanding())

    def first_error(self):
        """Return why the first connection failed, or the empty string."""
        return self.error.decode("utf-8", "replace")

    def forget_latencies(self):
        """Leave out of the latencies what was sent up to now."""
        self.latency_from = monotonic_ns()
        memset(self.histogram, 0, BUCKETS * sizeof(uint64_t))

    def latencies(self):
        """Return the deliveries since then by their latency: nanoseconds (the middle of a bucket) -> how many."""
        cdef int bucket, power
        found = {}
        for bucket in range(BUCKETS):
            if self.histogram[bucket]:
                power = bucket // 64 - 1
                found[float(bucket) if bucket < 128 else (bucket - power * 64 + 0.5) * 2.0 ** power] = self.histogram[bucket]
        return found

    def disconnect(self):
        """Send DISCONNECT on every connection that is ready and close all."""
        cdef uint32_t slot
        cdef Connection *connection
        for slot in range(self.total):
            connection = &self.connections[slot]
            if connection.state == READY:
                self.write(connection, <const uint8_t *> b"\xe0\x00", 2)
            if connection.fd >= 0:
                close(connection.fd)
            transport_free(&connection.transport)
            connection.fd = -1
            connection.state = CLOSED

    # ---- the loop; from here on there is no GIL

    cdef bint turns(self, uint64_t until) noexcept nogil:
        cdef epoll_event events[EVENTS]
        cdef Connection *connection
        cdef uint64_t now, sleep
        cdef int count, i, wait
        if self.phase == CYCLING:
            self.start_cyclers()
        elif self.phase == HOPPING:
            self.check_hoppers()
        while True:
            now = monotonic_ns()
            self.note_stall(now)
            sleep = 10000000
            if self.phase == CONNECTING:
                self.dial_more()
                if self.next_dial == self.total - self.cyclers and self.dialing == 0:
                    return True
            elif self.phase == PUBLISHING:
                sleep = self.publish(now)
                if self.count and self.counters.published >= self.count:
                    return True
                self.ping(now)
            elif self.phase == DRAINING:
                if self.outstanding() == 0:
                    return True
            elif self.phase == HOLDING:
                self.ping(now)
            elif self.phase == HOPPING:
                sleep = self.hop(now)
            now = monotonic_ns()
            if now >= until:
                return False
            if sleep > until - now:
                sleep = until - now
            wait = <int> (sleep // 1000000)
            if sleep and wait == 0:     # too short for epoll's own clock
                self.set_timer(now + sleep)
                wait = 1
            self.may_sleep = sleep
            self.last_turn = now
            count = epoll_wait(self.epoll, events, EVENTS, wait)
            for i in range(count):
                connection = <Connection *> events[i].data.ptr
                if connection == NULL:
                    read(self.timer, self.incoming, 8)
                elif connection.fd >= 0:
                    self.handle_event(connection, events[i].events)

    cdef void note_stall(self, uint64_t now) noexcept nogil:
        # From one epoll_wait to the next: longer than it meant to sleep and than a turn's work can take.
        cdef uint64_t taken = now - self.last_turn
        if taken > self.may_sleep + STALL:
            taken -= self.may_sleep
            self.counters.stalls += 1
            self.counters.stalled += taken
            self.counters.longest_stall = max(self.counters.longest_stall, taken)

    cdef uint64_t outstanding(self) noexcept nogil:
        # Deliveries and acknowledgements still to come; what was written off and came all the same makes it 0.
        cdef uint64_t done = self.counters.received + self.counters.written_off
        cdef uint64_t left = self.counters.expected - done if self.counters.expected > done else 0
        if self.qos:
            left += self.counters.published - self.counters.acknowledged
        return left

    cdef bint watch(self, int fd, Connection *connection) noexcept nogil:
        cdef epoll_event event
        event.events = EPOLLIN if connection == NULL else EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
        event.data.ptr = connection
        return epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) == 0

    cdef void set_timer(self, uint64_t at) noexcept nogil:
        cdef itimerspec when
        memset(&when, 0, sizeof(when))
        when.it_value.tv_sec = at // 1000000000
        when.it_value.tv_nsec = at % 1000000000
        timerfd_settime(self.timer, TFD_TIMER_ABSTIME, &when, NULL)

    # ---- connections

    cdef void dial_more(self) noexcept nogil:
        # Of a hopper's two connections the second is for the take-over.
        cdef Connection *connection
        while self.next_dial < self.total - self.cyclers and self.dialing < self.parallel:
            connection = &self.connections[self.next_dial]
            self.next_dial += 1
            if connection.role != HOPPER or connection.target == 0:
                self.dial(connection)

    cdef void start_cyclers(self) noexcept nogil:
        # Dials those that stand still and gives up those that take too long.
        cdef uint32_t slot
        cdef Connection *connection
        cdef uint64_t now = monotonic_ns()
        for slot in range(self.total - self.cyclers, self.total):
            connection = &self.connections[slot]
            if connection.fd >= 0 and now - connection.dialed > <uint64_t> CYCLE_LIMIT * 1000000000:
                self.fail(connection, "took too long", 0)
            if connection.fd < 0:
                self.dial(connection)

    cdef Connection *first_hopper(self) noexcept nogil:
        return &self.connections[self.total - self.cyclers - 2 * self.hoppers]

    cdef uint64_t hop(self, uint64_t now) noexcept nogil:
        # Begins the take-overs that are due, clients in turn; one that is still being taken over is passed over.
        # Returns for how many ns the loop may sleep.
        cdef uint64_t due = <uint64_t> (<double> (now - self.started) * self.rate / 1e9) + 1
        cdef uint64_t at
        cdef uint32_t passed = 0
        cdef Connection *old
        cdef Connection *new
        while passed < self.hoppers and (self.rate == 0 or self.issued < due):
            self.turn = (self.turn + 1) % self.hoppers
            old = self.first_hopper() + 2 * self.turn
            new = old + 1
            if new.state == READY:
                old, new = new, old
            passed += 1
            if old.state == READY and new.fd < 0:
                self.issued += 1
                passed = 0
                new.taking = True
                self.dial(new)
        if passed or self.rate == 0:
            return 1000000
        at = self.started + <uint64_t> (self.issued / self.rate * 1e9)
        now = monotonic_ns()
        return at - now if at > now else 0

    cdef void check_hoppers(self) noexcept nogil:
        # Gives up take-overs that take too long and connects clients anew that have no connection left.
        cdef uint32_t number
        cdef uint64_t limit = monotonic_ns() - <uint64_t> CYCLE_LIMIT * 1000000000
        cdef Connection *pair
        cdef Connection *one
        for number in range(self.hoppers):
            pair = self.first_hopper() + 2 * number
            one = pair if pair.dialed > pair[1].dialed else pair + 1
            if one.fd >= 0 and one.dialed < limit:
                if one.state < READY:
                    self.fail(one, "was not let in while it was connected elsewhere", 0)
                elif pair.fd >= 0 and pair[1].fd >= 0:
                    self.fail(pair if one != pair else pair + 1, "was not closed when it was taken over", 0)
            if pair.fd < 0 and pair[1].fd < 0:
                pair.taking = False
                self.dial(pair)

    cdef bint is_taken_over(self, Connection *connection) noexcept nogil:
        # Whether a hopper's connection ends because the other one has sent CONNECT.
        cdef Connection *other = connection + 1 if connection.target == 0 else connection - 1
        return connection.state == READY and other.fd >= 0 and other.taking and other.state > OPENING

    cdef void dial(self, Connection *connection) noexcept nogil:
        cdef int one = 1
        cdef uint64_t address
        cdef sockaddr_in source
        connection.state = DIALING
        connection.tail_size = connection.out_start = connection.out_size = 0
        connection.dialed = monotonic_ns()
        self.dialing += 1
        self.dials += 1
        connection.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
        if connection.fd < 0:
            self.fail(connection, "socket", errno)
            return
        setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
        address = self.dials % CYCLE_ADDRESSES if connection.role >= HOPPER else connection.slot // PORTS_PER_ADDRESS
        memset(&source, 0, sizeof(source))
        source.sin_family = AF_INET
        if self.local:  # from 127.x.1.1 on, x by run, so that those of several processes don't share ports
            address = (self.run_id % 200 << 16) + (address // 200 << 8) + address % 200
            source.sin_addr.s_addr = htonl(<uint32_t> (0x7F000101 + address))
        setsockopt(connection.fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one))
        if bind(connection.fd, <sockaddr *> &source, sizeof(source)):
            self.fail(connection, "bind", errno)
        elif connect(
            connection.fd, <sockaddr *> &self.targets[connection.target], sizeof(sockaddr_in)
        ) and errno != EINPROGRESS:
            self.fail(connection, "connect", errno)
        elif not self.watch(connection.fd, connection):
            self.fail(connection, "epoll_ctl", errno)

    cdef void fail(self, Connection *connection, const char *reason, int problem) noexcept nogil:
        # Closes a connection that was not to be closed, keeps the first reason (with an errno, if not 0), counts.
        cdef const char *role = "publisher"
        cdef size_t size
        if connection.role != PUBLISHER:
            role = "subscriber" if connection.role == SUBSCRIBER else "connection"
        if self.error[0] == 0:
            snprintf(self.error, sizeof(self.error), "%s %u: %s", role, connection.index, reason)
            if problem:
                size = strlen(self.error)
                snprintf(self.error + size, sizeof(self.error) - size, ": %s", strerror(problem))
        if connection.role >= HOPPER:
            self.counters.cycle_failures += 1
        elif connection.state == READY:
            self.counters.closed += 1
        else:
            self.counters.refused += 1
        self.hang_up(connection)

    cdef void hang_up(self, Connection *connection) noexcept nogil:
        if connection.state < READY:
            self.dialing -= 1
        if connection.fd >= 0:
            close(connection.fd)
        transport_free(&connection.transport)
        connection.fd = -1
        connection.state = CLOSED

    cdef void be_ready(self, Connection *connection) noexcept nogil:
        connection.state = READY
        self.dialing -= 1
        self.counters.ready += 1

    cdef void handle_event(self, Connection *connection, uint32_t events) noexcept nogil:
        cdef int problem = 0
        cdef socklen_t size = sizeof(problem)
        if connection.state == DIALING:
            getsockopt(connection.fd, SOL_SOCKET, SO_ERROR, &problem, &size)
            if problem:
                self.fail(connection, "connect", problem)
                return
            if not events & EPOLLOUT:
                return
            connection.state = OPENING
        if connection.state == OPENING:
            self.open(connection)
            if connection.state == OPENING:
                return
        elif events & EPOLLOUT and connection.out_size:
            self.flush(connection)
        if connection.fd >= 0 and events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            self.receive(connection, (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        if connection.role == PUBLISHER:
            self.activate(connection)

    cdef void open(self, Connection *connection) noexcept nogil:
        # What comes before CONNECT; then CONNECT.
        cdef int done
        connection.transport.websocket = self.asking != NULL
        done = transport_open(&connection.transport, connection.fd, self.secure, self.asking, self.incoming, READ_SIZE)
        if done < 0:
            self.fail(connection, "the handshake of TLS or WebSocket failed", 0)
        elif done:
            connection.state = CONNACK_DUE
            connection.dialed = monotonic_ns()
            self.send_connect(connection)

    cdef void write(self, Connection *connection, const uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t sent
        cdef uint8_t *at
        if connection.fd < 0:
            return
        if connection.transport.websocket:
            if not make_room(&self.framed, &self.framed_room, size + HEAD_MOST):
                self.fail(connection, "out of memory", errno)
                return
            at = put_head(self.framed, size)
            memcpy(at, data, size)
            data, size = self.framed, size + <size_t> (at - self.framed)
        if connection.out_size == 0:
            self.counters.writes += 1
            sent = transport_send(&connection.transport, connection.fd, data, size)
            if sent < 0:
                if errno != EAGAIN:
                    self.fail(connection, "send", errno)
                    return
                sent = 0
            data += sent
            size -= <size_t> sent
            if size == 0:
                return
            connection.out_start = 0
        if not make_room(&connection.out, &connection.out_room, connection.out_start + connection.out_size + size):
            self.fail(connection, "out of memory", errno)
            return
        memcpy(connection.out + connection.out_start + connection.out_size, data, size)
        connection.out_size += size

    cdef void flush(self, Connection *connection) noexcept nogil:
        cdef ssize_t sent
        while connection.out_size:
            self.counters.writes += 1
            sent = transport_send(
                &connection.transport, connection.fd, connection.out + connection.out_start, connection.out_size)
            if sent < 0:
                if errno != EAGAIN:
                    self.fail(connection, "send", errno)
                return
            connection.out_start += <size_t> sent
            connection.out_size -= <size_t> sent
        connection.out_start = 0

    # ---- reading

    cdef void receive(self, Connection *connection, bint to_the_end) noexcept nogil:
        cdef uint8_t *at
        cdef uint8_t *end
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
                count = unframe(&connection.transport, self.incoming + connection.tail_size, <size_t> count)
            self.counters.reads += 1
            now = monotonic_ns()
            at = self.incoming
            end = at + connection.tail_size + count
            self.reply_size = 0
            while True:
                whole = get_frame(at, end, &header, &body)
                if whole != 1:
                    break
                self.handle_packet(connection, at[0], at + header, body, now)
                if connection.fd < 0:
                    return
                at += header + body
            connection.tail_size = <size_t> (end - at)
            if whole < 0 or connection.tail_size >= self.payload + SLACK:
                self.fail(connection, "a packet is too long", 0)
                return
            if connection.tail_size:
                if not make_room(&connection.tail, &connection.tail_room, connection.tail_size):
                    self.fail(connection, "out of memory", errno)
                    return
                memcpy(connection.tail, at, connection.tail_size)
            if self.reply_size:
                self.write(connection, self.replies, self.reply_size)
                if connection.fd < 0:
                    return
            if raw < READ_SIZE and not to_the_end:
                return

    cdef void handle_end(self, Connection *connection, ssize_t count) noexcept nogil:
        if connection.state == CLOSING and count == 0:
            self.counters.cycles += 1
            self.hang_up(connection)
            if self.phase == CYCLING:
                self.dial(connection)
            return
        if connection.role == HOPPER and self.is_taken_over(connection):
            self.hang_up(connection)
            return
        self.fail(connection, "closed by the broker", errno if count else 0)

    cdef void handle_packet(
        self, Connection *connection, uint8_t first, const uint8_t *body, uint32_t size, uint64_t now
    ) noexcept nogil:
        cdef uint32_t kind = first >> 4
        cdef uint32_t number = get_uint16(body) if size >= 2 else 0
        if kind == PUBLISH:
            self.handle_publish(connection, first, body, size, now)
        elif kind == PUBACK or kind == PUBREC or kind == PUBCOMP:
            self.handle_acknowledgement(connection, kind, number)
        elif kind == PUBREL and size == 2:
            self.reply(PUBCOMP << 4, number)
        elif kind == CONNACK:
            self.handle_connack(connection, body, size)
        elif kind == SUBACK:
            self.handle_suback(connection, body, size)
        elif kind == PINGRESP:
            self.counters.pongs += 1
        else:
            self.counters.malformed += 1

    cdef void reply(self, uint32_t first, uint32_t packet_id) noexcept nogil:
        cdef uint8_t *at = self.replies + self.reply_size
        at[0] = <uint8_t> first
        at[1] = 2
        put_uint16(at + 2, packet_id)
        self.reply_size += 4

    cdef void handle_connack(self, Connection *connection, const uint8_t *body, uint32_t size) noexcept nogil:
        cdef uint32_t filters
        if connection.state != CONNACK_DUE or size != 2 or body[1] != 0:
            self.fail(connection, "CONNACK refuses or is malformed", 0)
            return
        if connection.role == CYCLER:
            connection.state = CLOSING
            self.dialing -= 1
            self.write(connection, <const uint8_t *> b"\xe0\x00", 2)
            return
        if connection.role == HOPPER and connection.taking:
            self.counters.cycles += 1
            self.histogram[bucket_of(monotonic_ns() - connection.dialed)] += 1
        if connection.role == SUBSCRIBER or (
            self.subscribe and (connection.role == IDLER or connection.role == HOPPER and not body[0] & 1)
        ):
            filters = filter_count(&self.shape) if connection.role == SUBSCRIBER else 1
            connection.state = SUBACK_DUE
            connection.subacks_due = (filters + FILTERS_PER_PACKET - 1) // FILTERS_PER_PACKET
            self.send_subscribe(connection, filters)
        else:
            self.be_ready(connection)

    cdef void handle_suback(self, Connection *connection, const uint8_t *body, uint32_t size) noexcept nogil:
        cdef uint32_t i
        if connection.state != SUBACK_DUE or size < 3:
            self.fail(connection, "SUBACK is unexpected or malformed", 0)
            return
        for i in range(2, size):
            if body[i] != (self.qos if connection.role == SUBSCRIBER else 0):
                self.fail(connection, "SUBACK refuses or grants another QoS", 0)
                return
        connection.subacks_due -= 1
        if connection.subacks_due == 0:
            self.be_ready(connection)

    cdef void handle_publish(
        self, Connection *connection, uint8_t first, const uint8_t *body, uint32_t size, uint64_t now
    ) noexcept nogil:
        cdef Stamp stamp
        cdef Stream *stream
        cdef int verdict
        cdef uint32_t qos = first >> 1 & 3
        cdef uint32_t at = 2 + (get_uint16(body) if size >= 2 else size)
        if qos and at + 2 <= size:
            self.reply((PUBACK if qos == 1 else PUBREC) << 4, get_uint16(body + at))
            at += 2
        if at + self.payload != size or qos != <uint32_t> self.qos or connection.streams == NULL:
            self.counters.malformed += 1
            return
        memcpy(&stamp, body + at, sizeof(stamp))
        if stamp.run != self.run_id or stamp.publisher >= self.shape.publishers or stamp.sequence == 0:
            self.counters.foreign += 1
            return
        if not is_subscribed(&self.shape, connection.index, stamp.topic):
            self.counters.misrouted += 1
            return
        stream = connection.streams if self.stream_count == 1 else connection.streams + stamp.publisher
        verdict = observe(stream, stamp.sequence)
        if verdict == DUPLICATE:
            self.counters.duplicates += 1
            return
        if verdict != IN_ORDER:
            self.counters.reordered += 1
        self.counters.received += 1
        self.last_delivery = now
        if stamp.sent >= self.latency_from:
            self.histogram[bucket_of(now - stamp.sent)] += 1

    cdef void handle_acknowledgement(self, Connection *connection, uint32_t kind, uint32_t packet_id) noexcept nogil:
        if (
            connection.in_flight == NULL or not 1 <= packet_id <= self.window or connection.in_flight[packet_id] == 0
            or (kind == PUBACK) != (self.qos == 1)
        ):
            self.counters.malformed += 1
        elif kind == PUBREC:
            self.reply(PUBREL << 4 | 2, packet_id)
        else:
            connection.in_flight[packet_id] = 0
            connection.free_ids[connection.free_count] = <uint16_t> packet_id
            connection.free_count += 1
            self.counters.acknowledged += 1

    # ---- writing

    cdef void send_connect(self, Connection *connection) noexcept nogil:
        cdef uint8_t packet[64 + LOGIN_SIZE]
        cdef uint8_t *at = packet + 3
        cdef uint8_t *size
        cdef uint32_t remaining
        cdef const char *letters = "pschd"
        at = put_bytes(at, b"\x00\x04MQTT\x04", 7)
        at[0] = <uint8_t> ((2 if self.clean_session else 0) | self.login_flags)
        at = put_uint16(at + 1, <uint32_t> self.keep_alive)
        size = at
        at = put_bytes(at + 2, self.prefix, self.prefix_size)
        at[0] = <uint8_t> letters[connection.role]
        at = put_decimal(at + 1, connection.index)
        put_uint16(size, <uint32_t> (at - size - 2))
        at = put_bytes(at, self.login, self.login_size)
        remaining = <uint32_t> (at - packet - 3)
        if remaining < 128:
            packet[1], packet[2] = CONNECT << 4, <uint8_t> remaining
            self.write(connection, packet + 1, <size_t> (at - packet - 1))
        else:
            packet[0], packet[1], packet[2] = CONNECT << 4, <uint8_t> (remaining & 127 | 128), <uint8_t> (remaining >> 7)
            self.write(connection, packet, <size_t> (at - packet))

    cdef void send_subscribe(self, Connection *connection, uint32_t filters) noexcept nogil:
        cdef uint8_t body[FILTERS_PER_PACKET * (TOPIC_SIZE + 3) + 2]
        cdef uint8_t packet[FILTERS_PER_PACKET * (TOPIC_SIZE + 3) + 8]
        cdef uint8_t *at
        cdef uint8_t *end
        cdef uint8_t *size
        cdef uint32_t which = 0, packet_id = 0
        while which < filters:
            packet_id += 1
            at = put_uint16(body, packet_id)
            while which < filters and which < packet_id * FILTERS_PER_PACKET:
                size = at
                if connection.role == SUBSCRIBER:
                    at = put_filter(&self.shape, connection.index, which, at + 2)
                else:
                    at = put_decimal(put_bytes(at + 2, b"load/idle/", 10), connection.index)
                put_uint16(size, <uint32_t> (at - size - 2))
                at[0] = <uint8_t> (self.qos if connection.role == SUBSCRIBER else 0)
                at += 1
                which += 1
            packet[0] = SUBSCRIBE << 4 | 2
            end = put_length(packet + 1, <uint32_t> (at - body))
            end = put_bytes(end, body, <size_t> (at - body))
            self.write(connection, packet, <size_t> (end - packet))

    cdef void ping(self, uint64_t now) noexcept nogil:
        # Spread evenly, so that each connection pings once in three quarters of the keep alive.
        cdef uint64_t due = <uint64_t> (<double> (now - self.started) / (self.keep_alive * 0.75e9) * self.total)
        while self.pinged < due:
            self.pinged += 1
            self.next_ping = (self.next_ping + 1) % self.total
            if self.connections[self.next_ping].state == READY:
                self.counters.pings += 1
                self.write(&self.connections[self.next_ping], <const uint8_t *> b"\xc0\x00", 2)

    cdef void activate(self, Connection *connection) noexcept nogil:
        # The publisher may be able to send: let the next turn try.
        if not connection.active and self.rate == 0 and connection.sequence < connection.quota:
            connection.active = True
            self.active[self.active_count] = connection
            self.active_count += 1

    cdef bint must_wait(self) noexcept nogil:
        # Whether the backlog is full. A broker may drop: when nothing came for a while, what is missing is written off.
        cdef uint64_t now
        if (
            self.backlog == 0
            or self.counters.expected < self.counters.received + self.counters.written_off + self.backlog
        ):
            return False
        now = monotonic_ns()
        if now - self.last_delivery <= WRITE_OFF:
            return True
        self.counters.written_off = self.counters.expected - self.counters.received
        self.last_delivery = now
        return False

    cdef uint64_t publish(self, uint64_t now) noexcept nogil:
        # Sends what may be sent now; returns for how many ns the loop may sleep if nothing arrives.
        cdef uint32_t tried = 0, writes, count = self.active_count
        cdef Connection *connection
        if self.rate > 0:
            return self.publish_on_time(now)
        while tried < count:
            if self.turn >= self.active_count:
                self.turn = 0
            connection = self.active[self.turn]
            writes = 0
            while writes < WRITES_PER_TURN:
                if self.must_wait():
                    return 10000000
                if self.send_messages(connection, self.batch, monotonic_ns()) == 0:
                    break
                writes += 1
            if writes < WRITES_PER_TURN:  # blocked or finished; an event makes it active again
                connection.active = False
                self.active_count -= 1
                self.active[self.turn] = self.active[self.active_count]
            else:
                self.turn += 1
            tried += 1
        return 0 if self.active_count else 10000000

    cdef uint64_t publish_on_time(self, uint64_t now) noexcept nogil:
        # Publishers in turn; one that is blocked is passed over.
        cdef uint64_t due = <uint64_t> (<double> (now - self.started) * self.rate / 1e9) + 1
        cdef uint64_t at
        cdef uint32_t passed = 0, sent
        while self.issued < due and passed < self.shape.publishers:
            self.turn = (self.turn + 1) % self.shape.publishers
            at = due - self.issued
            sent = self.send_messages(
                &self.connections[self.shape.subscribers + self.turn],
                <uint32_t> (at if at < self.batch else self.batch), monotonic_ns())
            passed = 0 if sent else passed + 1
            if sent:
                at = self.started + <uint64_t> (self.issued / self.rate * 1e9)
                self.counters.late = max(self.counters.late, now - at if now > at else 0)
            self.issued += sent
        if passed:
            return 1000000
        at = self.started + <uint64_t> (self.issued / self.rate * 1e9)
        now = monotonic_ns()
        return at - now if at > now else 0

    cdef uint32_t send_messages(self, Connection *connection, uint32_t most, uint64_t now) noexcept nogil:
        # Up to `most` messages in one write; returns how many.
        cdef uint64_t left = connection.quota - connection.sequence
        cdef uint8_t *at = self.outgoing
        cdef uint32_t i
        if connection.state != READY or connection.out_size:
            return 0
        if self.qos and most > connection.free_count:
            most = connection.free_count
        if most > left:
            most = <uint32_t> left
        if most == 0:
            return 0
        for i in range(most):
            at = self.put_message(connection, at, now)
        self.counters.published += most
        self.write(connection, self.outgoing, <size_t> (at - self.outgoing))
        return most

    cdef uint8_t *put_message(self, Connection *connection, uint8_t *at, uint64_t now) noexcept nogil:
        cdef uint8_t topic_name[TOPIC_SIZE]
        cdef Stamp stamp
        cdef uint32_t size, packet_id
        stamp.topic = pick_topic(&self.shape, connection.index, &connection.random)
        size = <uint32_t> (put_topic(&self.shape, stamp.topic, topic_name) - topic_name)
        self.counters.expected += deliveries(&self.shape, stamp.topic)
        connection.sequence += 1
        at[0] = <uint8_t> (PUBLISH << 4 | self.qos << 1)
        at = put_length(at + 1, 2 + size + (2 if self.qos else 0) + self.payload)
        at = put_bytes(put_uint16(at, size), topic_name, size)
        if self.qos:
            connection.free_count -= 1
            packet_id = connection.free_ids[connection.free_count]
            connection.in_flight[packet_id] = now
            at = put_uint16(at, packet_id)
        stamp.run, stamp.publisher, stamp.unused = self.run_id, connection.index, 0
        stamp.sequence, stamp.sent = connection.sequence, now
        at = put_bytes(at, &stamp, sizeof(stamp))
        return put_bytes(at, self.filler + sizeof(stamp), self.payload - sizeof(stamp))
