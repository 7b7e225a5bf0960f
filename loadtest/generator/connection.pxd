# One client's connection: socket, transport, unsent bytes; and the state that all connections of a generator share.
#
# Rules: a connection is edge-triggered, so it is read until a short read and written until EAGAIN. Unsent bytes wait in
# `Connection.out`. Nothing here raises: a failed connection is closed and counted; the first reason is kept.

from libc.errno cimport EAGAIN, EINPROGRESS, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset, strerror, strlen
from posix.unistd cimport close

from ..._speedups.net.openssl cimport SSL_CTX
from ..._speedups.net.posix cimport (
    EPOLL_CTL_ADD,
    EPOLLET,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    epoll_ctl,
    epoll_event,
)
from .checker cimport Stream
from .transport cimport (
    MAX_FRAME_HEAD,
    Transport,
    put_head,
    transport_free,
    transport_open,
    transport_send,
)
from .wire cimport monotonic_ns

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
    int bind(int fd, const sockaddr* address, socklen_t size)
    int connect(int fd, const sockaddr* address, socklen_t size)
    int setsockopt(int fd, int level, int option, const void* value, socklen_t size)
    int getsockopt(int fd, int level, int option, void* value, socklen_t* size)

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

cdef enum:
    READ_SIZE = 256 * 1024      # bytes of one read
    PORTS_PER_ADDRESS = 8000    # connections from one source address, if they stay
    RECONNECT_ADDRESSES = 100   # source addresses if they don't, so that ports in TIME_WAIT don't stop them

cdef enum:
    MAX_NODES = 16              # as in settings

cdef enum:  # Connection.role
    PUBLISHER
    SUBSCRIBER
    IDLE        # connects, subscribes if configured, pings
    TAKEOVER    # one of the two connections of a client: each takes over the session of the other in turn
    RECONNECT   # connects and disconnects, over and over

cdef enum:  # Connection.state
    UNUSED
    DIALING         # in connect()
    OPENING         # handshakes of TLS and WebSocket
    AWAIT_CONNACK
    AWAIT_SUBACK
    READY
    CLOSING         # RECONNECT: DISCONNECT sent, the broker closes
    CLOSED

cdef struct Connection:
    int fd                      # -1 without a socket
    uint8_t role
    uint8_t state
    bint active                 # publisher: is in Generator.active
    uint32_t index              # within its role
    uint32_t slot               # among all connections; determines the source address
    uint32_t subacks_due
    uint8_t target              # index in Network.targets; 0, or 2 and more, for subscribers at several nodes
    bint taking_over            # TAKEOVER: the current attempt is a take-over, not the client's first connection
    Transport transport         # between socket and MQTT
    uint8_t* tail               # an incomplete packet; allocated when the first one occurs
    size_t tail_size
    size_t tail_room
    uint8_t* out                # unsent bytes, from out_start on; allocated when they first occur
    size_t out_start
    size_t out_size
    size_t out_room
    uint64_t dialed             # ns, when the last connect() began; from CONNECT on, when that was sent
    uint64_t sequence           # publisher: of its last message
    uint64_t quota              # publisher: messages it may send in all
    uint64_t random             # publisher: state of next_random
    uint64_t* in_flight         # publisher, QoS > 0: time of sending by packet identifier; 0 = free
    uint16_t* free_ids          # publisher, QoS > 0: a stack of `free_count` packet identifiers
    uint32_t free_count
    Stream* streams             # subscriber: one for each of its publishers

cdef struct Counters:           # since the start
    uint64_t ready, refused, closed
    uint64_t published, acknowledged, expected, received
    uint64_t duplicates, reordered, misrouted, foreign, malformed
    uint64_t cuts, repeated, returned  # SHARED: of dying subscribers; messages that came again, or late
    uint64_t written_off
    uint64_t writes, reads
    uint64_t pings, pongs
    uint64_t cycles, cycle_failures  # of RECONNECT connections, or take-overs
    uint64_t late               # ns, max. delay of a message after its time (rate)
    uint64_t stalls, stalled, longest_stall  # number; ns; ns

cdef struct Network:            # shared by all connections of a generator
    int epoll
    sockaddr_in[MAX_NODES + 1] targets  # of subscribers and others; of publishers; of more subscribers
    uint32_t nodes              # of subscribers
    SSL_CTX* tls                # NULL: plain text
    const char* request         # HTTP upgrade; NULL: no WebSocket
    uint8_t* framed             # one write, in a frame
    size_t framed_room
    bint local                  # the broker is in 127.0.0.0/8: any number of source addresses
    uint32_t run_id
    uint32_t dialing            # handshakes under way
    uint64_t dials
    Counters counters
    char[192] error             # why the first connection was lost; "" = none


cdef inline bint make_room(uint8_t** data, size_t* room, size_t need) noexcept nogil:
    cdef void* grown
    if need <= room[0]:
        return True
    grown = realloc(data[0], need * 2)
    if grown == NULL:
        return False
    data[0] = <uint8_t*>grown
    room[0] = need * 2
    return True


cdef inline bint watch(Network* network, int fd, Connection* connection) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN if connection == NULL else EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
    event.data.ptr = connection
    return epoll_ctl(network.epoll, EPOLL_CTL_ADD, fd, &event) == 0


cdef inline void hang_up(Network* network, Connection* connection) noexcept nogil:
    if connection.state < READY:
        network.dialing -= 1
    if connection.fd >= 0:
        close(connection.fd)
    transport_free(&connection.transport)
    connection.fd = -1
    connection.state = CLOSED


cdef inline void fail(Network* network, Connection* connection, const char* reason, int error) noexcept nogil:
    """Close a connection unexpectedly, count it, and keep the first reason (with an errno, if not 0)."""
    cdef const char* role = "publisher"
    cdef size_t size
    if connection.role != PUBLISHER:
        role = "subscriber" if connection.role == SUBSCRIBER else "connection"
    if network.error[0] == 0:
        snprintf(network.error, sizeof(network.error), "%s %u: %s", role, connection.index, reason)
        if error:
            size = strlen(network.error)
            snprintf(network.error + size, sizeof(network.error) - size, ": %s", strerror(error))
    if connection.role >= TAKEOVER:
        network.counters.cycle_failures += 1
    elif connection.state == READY:
        network.counters.closed += 1
    else:
        network.counters.refused += 1
    hang_up(network, connection)


cdef inline void dial(Network* network, Connection* connection) noexcept nogil:
    """Begin to connect."""
    cdef int one = 1
    cdef uint64_t address
    cdef sockaddr_in source
    connection.state = DIALING
    connection.tail_size = connection.out_start = connection.out_size = 0
    connection.dialed = monotonic_ns()
    network.dialing += 1
    network.dials += 1
    connection.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
    if connection.fd < 0:
        fail(network, connection, "socket", errno)
        return
    setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
    if connection.role >= TAKEOVER:
        address = network.dials % RECONNECT_ADDRESSES
    else:
        address = connection.slot // PORTS_PER_ADDRESS
    memset(&source, 0, sizeof(source))
    source.sin_family = AF_INET
    if network.local:  # from 127.x.1.1 on, x by run, so that several processes don't share ports
        address = (network.run_id % 200 << 16) + (address // 200 << 8) + address % 200
        source.sin_addr.s_addr = htonl(<uint32_t>(0x7F000101 + address))
    setsockopt(connection.fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one))
    if bind(connection.fd, <sockaddr*>&source, sizeof(source)):
        fail(network, connection, "bind", errno)
    elif connect(
        connection.fd, <sockaddr*>&network.targets[connection.target], sizeof(sockaddr_in)
    ) and errno != EINPROGRESS:
        fail(network, connection, "connect", errno)
    elif not watch(network, connection.fd, connection):
        fail(network, connection, "epoll_ctl", errno)


cdef inline bint is_connected(Network* network, Connection* connection, uint32_t events) noexcept nogil:
    """Whether connect() has succeeded; a connection that has failed is closed."""
    cdef int error = 0
    cdef socklen_t size = sizeof(error)
    getsockopt(connection.fd, SOL_SOCKET, SO_ERROR, &error, &size)
    if error:
        fail(network, connection, "connect", error)
        return False
    return (events & EPOLLOUT) != 0


cdef inline bint is_open(Network* network, Connection* connection, uint8_t* buffer) noexcept nogil:
    """Whether the handshakes of TLS and WebSocket are done; a connection that has failed is closed."""
    cdef int done
    connection.transport.websocket = network.request != NULL
    done = transport_open(&connection.transport, connection.fd, network.tls, network.request, buffer, READ_SIZE)
    if done < 0:
        fail(network, connection, "the handshake of TLS or WebSocket failed", 0)
    return done > 0


cdef inline void become_ready(Network* network, Connection* connection) noexcept nogil:
    connection.state = READY
    network.dialing -= 1
    network.counters.ready += 1


cdef inline void write(Network* network, Connection* connection, const uint8_t* data, size_t size) noexcept nogil:
    """Send, or keep what the socket does not take."""
    cdef ssize_t sent
    cdef uint8_t* p
    if connection.fd < 0:
        return
    if connection.transport.websocket:
        if not make_room(&network.framed, &network.framed_room, size + MAX_FRAME_HEAD):
            fail(network, connection, "out of memory", errno)
            return
        p = put_head(network.framed, size)
        memcpy(p, data, size)
        data, size = network.framed, size + <size_t>(p - network.framed)
    if connection.out_size == 0:
        network.counters.writes += 1
        sent = transport_send(&connection.transport, connection.fd, data, size)
        if sent < 0:
            if errno != EAGAIN:
                fail(network, connection, "send", errno)
                return
            sent = 0
        data += sent
        size -= <size_t>sent
        if size == 0:
            return
        connection.out_start = 0
    if not make_room(&connection.out, &connection.out_room, connection.out_start + connection.out_size + size):
        fail(network, connection, "out of memory", errno)
        return
    memcpy(connection.out + connection.out_start + connection.out_size, data, size)
    connection.out_size += size


cdef inline void flush(Network* network, Connection* connection) noexcept nogil:
    """Send what the socket did not take before."""
    cdef ssize_t sent
    while connection.out_size:
        network.counters.writes += 1
        sent = transport_send(
            &connection.transport, connection.fd, connection.out + connection.out_start, connection.out_size)
        if sent < 0:
            if errno != EAGAIN:
                fail(network, connection, "send", errno)
            return
        connection.out_start += <size_t>sent
        connection.out_size -= <size_t>sent
    connection.out_start = 0


cdef inline void free_connection(Connection* connection) noexcept nogil:
    if connection.fd >= 0:
        close(connection.fd)
    transport_free(&connection.transport)
    free(connection.tail)
    free(connection.out)
    free(connection.in_flight)
    free(connection.free_ids)
    free(connection.streams)
