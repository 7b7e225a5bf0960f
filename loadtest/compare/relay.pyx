"""The baseline for a broker's CPU time at QoS 0: a relay that only copies messages.

One epoll loop. A turn reads once from every readable connection, appends each PUBLISH unchanged to the output of its
receivers, and writes once per receiver. Topic names are found by hash; any filter with a wildcard matches everything.
There are no checks, limits, timers or sessions, and input is trusted: any further cost is the broker's own.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove
from posix.unistd cimport close, read

from ..._speedups.codec.tables cimport (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
)
from ..._speedups.net.posix cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLOUT, epoll_create1, epoll_ctl, epoll_event, epoll_wait,
)
from ..generator.wire cimport get_frame, get_uint16

import socket

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_NOSIGNAL
    enum: SOCK_CLOEXEC
    enum: SOCK_NONBLOCK
    int accept4(int fd, void* address, void* size, int flags)
    int setsockopt(int fd, int level, int option, const void* value, unsigned int size)
    ssize_t send(int fd, const void* data, size_t size, int flags)

cdef extern from "<netinet/in.h>" nogil:
    enum: IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    enum: TCP_NODELAY

cdef enum:
    READ_SIZE = 256 * 1024      # bytes of one read
    EVENTS = 512                # of one epoll_wait
    BUCKETS = 1 << 16           # of the topic table; it does not grow
    MAX_OUT = 8 << 20           # unsent bytes of a receiver, beyond which messages to it are dropped
    TURNS = 1000                # without the GIL, then Python checks for signals
    TIMEOUT = 200               # ms of one epoll_wait, for the same reason


cdef struct Peer:
    int fd                      # -1 once it is closed; a Peer is never freed, topics may point to it
    bint subscribed             # is in a list of receivers
    bint touched                # is in Relay.touched
    bint blocked                # EAGAIN: epoll reports when it is writable
    uint8_t* tail               # an incomplete packet
    size_t tail_size
    size_t tail_room
    uint8_t* out                # unsent bytes, from out_start on
    size_t out_start
    size_t out_size
    size_t out_room


cdef struct Topic:
    Topic* next                 # in the same bucket
    uint32_t hash
    uint32_t size
    uint8_t* name
    Peer** receivers
    size_t count


cdef inline uint8_t* grown(uint8_t* data, size_t *room, size_t need) noexcept nogil:
    """Without memory the process ends by a fault: this is not a broker."""
    if need > room[0]:
        room[0] = max(need * 2, <size_t>4096)
        return <uint8_t*>realloc(data, room[0])
    return data


cdef class Relay:
    """Listens on 127.0.0.1:`port` and relays until an exception, such as KeyboardInterrupt, ends `serve`."""

    cdef:
        object listener
        int epoll
        Topic** topics
        Peer** wildcard_peers               # receivers of all messages
        size_t wildcard_count
        Peer** touched              # have output of this turn
        size_t touched_count
        size_t touched_room         # entries
        uint8_t* incoming

    def __init__(self, int port):
        cdef epoll_event event
        self.listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self.listener.setblocking(False)
        self.topics = <Topic**>calloc(BUCKETS, sizeof(void*))
        self.incoming = <uint8_t*>calloc(READ_SIZE, 1)
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        event.events = EPOLLIN
        event.data.ptr = NULL
        if self.topics == NULL or self.incoming == NULL or self.epoll < 0:
            raise MemoryError
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.listener.fileno(), &event):
            raise OSError(errno, "epoll_ctl")

    def serve(self):
        """Relay until an exception."""
        cdef int listener = self.listener.fileno()
        while True:
            with nogil:
                self.run(listener)
            PyErr_CheckSignals()

    cdef void run(self, int listener) noexcept nogil:
        cdef epoll_event events[EVENTS]
        cdef Peer* peer
        cdef int turn, i, count
        cdef size_t n
        for turn in range(TURNS):
            count = epoll_wait(self.epoll, events, EVENTS, TIMEOUT)
            if count <= 0:
                return
            for i in range(count):
                peer = <Peer*>events[i].data.ptr
                if peer == NULL:
                    self.accept(listener)
                    continue
                if events[i].events & EPOLLOUT and peer.blocked:
                    peer.blocked = False
                    self.flush(peer)
                if events[i].events & ~<uint32_t>EPOLLOUT and peer.fd >= 0:
                    self.receive(peer)
            for n in range(self.touched_count):
                self.touched[n].touched = False
                if not self.touched[n].blocked:
                    self.flush(self.touched[n])
            self.touched_count = 0

    cdef void accept(self, int listener) noexcept nogil:
        cdef epoll_event event
        cdef Peer* peer
        cdef int one = 1
        cdef int fd
        while True:
            fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                return
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
            peer = <Peer*>calloc(1, sizeof(Peer))
            peer.fd = fd
            event.events = EPOLLIN | EPOLLOUT | EPOLLET
            event.data.ptr = peer
            epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event)

    cdef void receive(self, Peer* peer) noexcept nogil:
        cdef ssize_t count
        cdef size_t used
        while peer.fd >= 0:
            count = read(peer.fd, self.incoming, READ_SIZE)
            if count <= 0:
                if count == 0 or errno != EAGAIN:
                    self.hang_up(peer)
                return
            if peer.tail_size:
                peer.tail = grown(peer.tail, &peer.tail_room, peer.tail_size + <size_t>count)
                memcpy(peer.tail + peer.tail_size, self.incoming, <size_t>count)
                peer.tail_size += <size_t>count
                used = self.handle(peer, peer.tail, peer.tail_size)
                if peer.fd < 0:
                    return
                peer.tail_size -= used
                memmove(peer.tail, peer.tail + used, peer.tail_size)
            else:
                used = self.handle(peer, self.incoming, <size_t>count)
                if peer.fd < 0:
                    return
                peer.tail_size = <size_t>count - used
                if peer.tail_size:
                    peer.tail = grown(peer.tail, &peer.tail_room, peer.tail_size)
                    memcpy(peer.tail, self.incoming + used, peer.tail_size)
            if count < READ_SIZE:
                return

    cdef size_t handle(self, Peer* peer, const uint8_t* data, size_t size) noexcept nogil:
        """Handle all complete packets; returns their bytes."""
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + size
        cdef uint32_t header = 0, body = 0
        while peer.fd >= 0 and get_frame(at, end, &header, &body) == 1:
            self.handle_packet(peer, at, header, body)
            at += header + body
        return <size_t>(at - data)

    cdef void handle_packet(self, Peer* peer, const uint8_t* frame, uint32_t header, uint32_t size) noexcept nogil:
        cdef uint8_t reply[4]
        cdef uint32_t kind = frame[0] >> 4
        if kind == PUBLISH:
            self.relay(frame, header, size)
        elif kind == CONNECT:
            reply[0], reply[1], reply[2], reply[3] = CONNACK << 4, 2, 0, 0
            self.put(peer, reply, 4)
        elif kind == PINGREQ:
            reply[0], reply[1] = PINGRESP << 4, 0
            self.put(peer, reply, 2)
        elif kind == SUBSCRIBE:
            self.subscribe(peer, frame + header, size)
        elif kind == DISCONNECT:
            self.hang_up(peer)

    cdef void relay(self, const uint8_t* frame, uint32_t header, uint32_t size) noexcept nogil:
        cdef Topic* topic = self.find(frame + header + 2, get_uint16(frame + header))
        cdef size_t i
        if topic != NULL:
            for i in range(topic.count):
                self.put(topic.receivers[i], frame, header + size)
        for i in range(self.wildcard_count):
            self.put(self.wildcard_peers[i], frame, header + size)

    cdef inline void put(self, Peer* peer, const uint8_t* data, size_t size) noexcept nogil:
        if peer.fd < 0 or peer.out_size > MAX_OUT:
            return
        peer.out = grown(peer.out, &peer.out_room, peer.out_start + peer.out_size + size)
        memcpy(peer.out + peer.out_start + peer.out_size, data, size)
        peer.out_size += size
        if not peer.touched:
            peer.touched = True
            if self.touched_count == self.touched_room:
                self.touched_room = max(self.touched_room * 2, <size_t>1024)
                self.touched = <Peer**>realloc(self.touched, self.touched_room * sizeof(void*))
            self.touched[self.touched_count] = peer
            self.touched_count += 1

    cdef void flush(self, Peer* peer) noexcept nogil:
        cdef ssize_t sent
        while peer.fd >= 0 and peer.out_size:
            sent = send(peer.fd, peer.out + peer.out_start, peer.out_size, MSG_NOSIGNAL)
            if sent < 0:
                if errno == EAGAIN:
                    peer.blocked = True
                    if peer.out_start:  # otherwise it would grow without limit
                        memmove(peer.out, peer.out + peer.out_start, peer.out_size)
                        peer.out_start = 0
                else:
                    self.hang_up(peer)
                return
            peer.out_start += <size_t>sent
            peer.out_size -= <size_t>sent
        peer.out_start = 0

    cdef Topic* find(self, const uint8_t* name, uint32_t size) noexcept nogil:
        cdef uint32_t key = hash_of(name, size)
        cdef Topic* topic = self.topics[key % BUCKETS]
        while topic != NULL:
            if topic.hash == key and topic.size == size and memcmp(topic.name, name, size) == 0:
                return topic
            topic = topic.next
        return NULL

    cdef void subscribe(self, Peer* peer, const uint8_t* body, uint32_t size) noexcept nogil:
        cdef uint8_t reply[128]
        cdef uint32_t at = 2, count = 0, length
        while at + 2 < size and count < 120:
            length = get_uint16(body + at)
            self.add(peer, body + at + 2, length)
            reply[4 + count] = 0
            count += 1
            at += 3 + length
        reply[0], reply[1] = SUBACK << 4, <uint8_t>(2 + count)
        reply[2], reply[3] = body[0], body[1]
        self.put(peer, reply, 4 + count)

    cdef void add(self, Peer* peer, const uint8_t* name, uint32_t size) noexcept nogil:
        cdef Topic* topic
        cdef size_t room = 0
        peer.subscribed = True
        if memchr(name, c'+', size) != NULL or memchr(name, c'#', size) != NULL:
            self.wildcard_peers = <Peer**>realloc(self.wildcard_peers, (self.wildcard_count + 1) * sizeof(void*))
            self.wildcard_peers[self.wildcard_count] = peer
            self.wildcard_count += 1
            return
        topic = self.find(name, size)
        if topic == NULL:
            topic = <Topic*>calloc(1, sizeof(Topic))
            topic.hash = hash_of(name, size)
            topic.size = size
            topic.name = grown(NULL, &room, size)
            memcpy(topic.name, name, size)
            topic.next = self.topics[topic.hash % BUCKETS]
            self.topics[topic.hash % BUCKETS] = topic
        topic.receivers = <Peer**>realloc(topic.receivers, (topic.count + 1) * sizeof(void*))
        topic.receivers[topic.count] = peer
        topic.count += 1

    cdef void hang_up(self, Peer* peer) noexcept nogil:
        cdef Topic* topic
        cdef int bucket
        for bucket in range(BUCKETS if peer.subscribed else 0):
            topic = self.topics[bucket]
            while topic != NULL:
                topic.count = without(topic.receivers, topic.count, peer)
                topic = topic.next
        self.wildcard_count = without(self.wildcard_peers, self.wildcard_count, peer)
        close(peer.fd)
        peer.fd = -1
        free(peer.out)
        free(peer.tail)
        peer.out = peer.tail = NULL
        peer.out_size = peer.out_room = peer.out_start = peer.tail_size = peer.tail_room = 0


cdef size_t without(Peer** peers, size_t count, Peer* removed) noexcept nogil:
    """Remove a peer from an unordered list; returns the remaining number."""
    cdef size_t i = 0
    while i < count:
        if peers[i] == removed:
            count -= 1
            peers[i] = peers[count]
        else:
            i += 1
    return count


cdef inline uint32_t hash_of(const uint8_t* name, uint32_t size) noexcept nogil:
    """FNV-1a, 32 bits."""
    cdef uint32_t value = 2166136261
    cdef uint32_t i
    for i in range(size):
        value = (value ^ name[i]) * 16777619
    return value
