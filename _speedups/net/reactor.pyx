"""The sockets: one epoll set, itself watched by the node's loop, so that a turn is one callback.

The one module here that touches sockets, because at a microsecond a message a Python call per read and per write is
what would cost most. A turn: ask epoll once, read each readable connection once into one shared buffer, let its channel
act, then `Turn.end` stores and writes. An idle connection owns no buffer and no timer: timers are slots of a wheel,
and a connection moves in it about once per keep-alive period.

Between socket and channel there may be layers: a PROXY protocol header, TLS (tls.pyx), HTTP and then frames
(websocket.pyx). What they read ahead is read on in the next turn (`hungry`): epoll doesn't tell of it.

A connection ends only between packets: what is found out while others are being served (a failed write) is noted in
`doomed` and worked off at the end of the turn.

The handler also gets `ended(connection, reason)`, once for each, `failed(connection, exception)`, and `accepting(bool)`.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset, strerror

from _speedups.base.buffers cimport buffer_append, buffer_free, buffer_reserve, buffer_size, pointers_free, pointers_push
from _speedups.protocol.channel cimport ENDED, EXPECTING, OPEN, Channel
from _speedups.net.listener cimport Endpoint, Listener
from _speedups.base.rate_limit cimport meter_has, meter_use
from _speedups.session.session cimport Session
from _speedups.net.tls cimport FAILED, RECORD_MOST, WANTS_READ, WANTS_WRITE, Tls
from _speedups.session.counters cimport (
    ACCEPT_PAUSES, BYTES_RECEIVED, BYTES_SENT, CONNECT_TIMEOUTS, CONNECTIONS_CLOSED, CONNECTIONS_OPENED,
    CONNECTIONS_REFUSED, KEEP_ALIVE_TIMEOUTS, PACKETS_RECEIVED, READ_PAUSES, THROTTLED, TLS_FAILURES, TLS_HANDSHAKES,
    WEBSOCKET_FAILURES,
)
from _speedups.net.websocket cimport NORMAL, PROTOCOL_ERROR, WebSocket

import os
import socket
from ipaddress import ip_address

from _speedups.net.proxy_header import HEADER_MOST, read_proxy_header

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event*)
    int epoll_wait(int, epoll_event*, int, int)
    int EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP

cdef extern from "<sys/socket.h>" nogil:
    struct sockaddr:
        pass
    ssize_t recv(int, void*, size_t, int)
    ssize_t send(int, const void*, size_t, int)
    int accept4(int, sockaddr*, uint32_t*, int)
    int shutdown(int, int)
    int setsockopt(int, int, int, const void*, uint32_t)
    int getsockopt(int, int, int, void*, uint32_t*)
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int, const msghdr*, int)
    struct linger:
        int l_onoff
        int l_linger
    int MSG_NOSIGNAL, MSG_DONTWAIT, MSG_PEEK, SOCK_NONBLOCK, SOCK_CLOEXEC, SHUT_WR, SOL_SOCKET, SO_LINGER, SO_PEERCRED

cdef extern from "<string.h>" nogil:
    void* memmem(const void*, size_t, const void*, size_t)

cdef extern from "<unistd.h>" nogil:
    int close(int)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    int nanosleep(const timespec*, timespec*)
    int CLOCK_MONOTONIC

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int, unsigned long)
    int PR_SET_TIMERSLACK


cdef extern from "<malloc.h>" nogil:
    int mallopt(int, int)
    int M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


cdef const uint8_t* MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"  # before an IPv4 address that is written as IPv6's


cdef inline int64_t now() noexcept nogil:
    """Nanoseconds, monotonic."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


cdef class Connection(Channel):
    """A connection of a client."""

    def __cinit__(self):
        self.fd = -1
        self.slot = -1

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        if self.turn is not None:
            buffer_free(&self.incoming, &self.turn.pool)

    @property
    def listener(self):
        """The name of the listener that the client came to."""
        return self.entrance.listener.name

    @property
    def transport(self):
        """What it speaks MQTT over: "mqtt" (plain TCP), "mqtts", "ws", "wss" or "unix"."""
        return self.entrance.transport

    @property
    def secure(self):
        """Whether nobody between can read what is said."""
        return self.tls is not None and self.tls.ready

    @property
    def address(self):
        """The client's address and port, as text; of a Unix socket "unix:" and the client's user id."""
        cdef int family = self.peer[0] | self.peer[1] << 8
        if family == socket.AF_UNIX:
            return f"unix:{int.from_bytes(self.peer[4:8], 'little')}"
        port = self.peer[2] << 8 | self.peer[3]
        if family == socket.AF_INET:
            return f"{socket.inet_ntop(family, self.peer[4:8])}:{port}"
        return f"[{socket.inet_ntop(socket.AF_INET6, self.peer[8:24])}]:{port}"

    cdef int move(self, int family, bytes address, int port) except -1:
        """The client is there, as its proxy says, and not where the connection comes from."""
        cdef int at = 4 if family == socket.AF_INET else 8
        self.peer[0] = family & 0xFF
        self.peer[1] = family >> 8
        self.peer[2] = port >> 8
        self.peer[3] = port & 0xFF
        memcpy(self.peer + at, <const uint8_t*>address, min(len(address), <Py_ssize_t>sizeof(self.peer) - at))
        return 0

    cdef int ask(self, uint32_t interest) except -1:
        """Be told of these events."""
        cdef epoll_event event
        if interest == self.interest or self.fd < 0:
            return 0
        event.events = interest
        event.data.u64 = <uint64_t><uintptr_t><void*>self
        if epoll_ctl(self.reactor.door if self.at_door else self.reactor.epoll, EPOLL_CTL_MOD, self.fd, &event) < 0:
            return self.reactor.doom(self, "epoll failed")
        self.interest = interest
        return 0

    cdef int come_in(self) except -1:
        """The client is let in: it is served in each turn from now on, however many wait at the door."""
        cdef epoll_event event
        if not self.at_door or self.fd < 0:
            return 0
        self.at_door = False
        event.events = self.interest
        event.data.u64 = <uint64_t><uintptr_t><void*>self
        if (epoll_ctl(self.reactor.door, EPOLL_CTL_DEL, self.fd, NULL) < 0
                or epoll_ctl(self.reactor.epoll, EPOLL_CTL_ADD, self.fd, &event) < 0):
            return self.reactor.doom(self, "epoll failed")
        return 0

    cdef bytes origin(self):
        """What connections of one client have in common: its IPv4 address, or its IPv6 network; empty: it has none."""
        cdef int family = self.peer[0] | self.peer[1] << 8
        if family == socket.AF_INET:
            return self.peer[4:8]
        if family == socket.AF_INET6 and memcmp(self.peer + 8, MAPPED, 12) == 0:
            return self.peer[20:24]                # an IPv4 address, as some proxies tell it
        return self.peer[8:16] if family == socket.AF_INET6 else b""

    cdef int spend(self, bint is_publish, Py_ssize_t size) except -1:
        cdef Listener listener = self.entrance.listener
        cdef uint32_t tick = self.turn.tick
        meter_use(&self.messages, listener.client_messages, is_publish, tick)
        meter_use(&self.volume, listener.client_bytes, size, tick)
        meter_use(&listener.messages, listener.total_messages, is_publish, tick)
        meter_use(&listener.volume, listener.total_bytes, size, tick)
        return self.slow_down()

    cdef int slow_down(self) except -1:
        """Take no more packets for now, if its rates are used up."""
        if self.parsing and self.metered and self.phase == OPEN and not self.may_go_on():
            self.parsing = False
            self.slowed = True
            self.turn.counters[THROTTLED] += 1
            self.reactor.slowed.append(self)
        return 0

    cdef bint may_go_on(self) noexcept:
        """Whether its rates, and those of its listener, allow another packet."""
        cdef Listener listener = self.entrance.listener
        cdef uint32_t tick = self.turn.tick
        return (meter_has(&self.messages, listener.client_messages, tick)
                and meter_has(&self.volume, listener.client_bytes, tick)
                and meter_has(&listener.messages, listener.total_messages, tick)
                and meter_has(&listener.volume, listener.total_bytes, tick))

    cdef int flush(self) except -1:
        """Send what the socket takes; ask to be told when it takes the rest."""
        cdef ssize_t sent
        cdef Py_ssize_t size = buffer_size(&self.out)
        if self.tls is not None or self.websocket is not None:
            if not self.transmit():
                return 0
            size = 0
        while size > 0 and not self.closed:
            sent = send(self.fd, self.out.data + self.out.start, size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno != EAGAIN:
                    return self.reactor.doom(self, strerror(errno).decode())
                sent = 0
            self.turn.counters[BYTES_SENT] += sent
            self.entrance.listener.bytes_sent += sent
            self.out.start += sent
            if sent < size:
                self.blocked = True
                return self.ask(self.interest | EPOLLOUT)
            size = 0
        buffer_free(&self.out, &self.turn.pool)
        if self.blocked:
            self.blocked = False
            if not self.turned:
                self.ask(self.interest & ~EPOLLOUT)
        if self.throttled:
            self.throttled = False
            self.check()
        if self.lingering:
            self.farewell()
            shutdown(self.fd, SHUT_WR)
        elif self.wants_room:
            self.wants_room = False
            self.drained()
        return 0

    cdef bint transmit(self) except -1:
        """Send through the layers what the socket takes; returns whether that was all."""
        cdef Py_ssize_t sent, size = buffer_size(&self.out)
        if self.tls is not None and not self.tls.ready:
            return False
        while size > 0 or (self.websocket is not None and self.websocket.owes()):
            if self.closed:
                return False
            sent = self.push(self.out.data + self.out.start, size)
            if sent == WANTS_WRITE:
                self.blocked = True
                self.ask(self.interest | EPOLLOUT)
                return False
            if sent < 0:
                return False
            self.turn.counters[BYTES_SENT] += sent
            self.entrance.listener.bytes_sent += sent
            self.out.start += sent
            size -= sent
        return True

    cdef Py_ssize_t push(self, const uint8_t* p, Py_ssize_t size) except -4:
        """Send some of these bytes of MQTT, in a frame, in a record; returns how many, or WANTS_WRITE or FAILED."""
        cdef WebSocket frames = self.websocket
        cdef Py_ssize_t sent
        if frames is None:
            sent = self.tls.write(p, size)
        else:
            frames.frame(size)
            # What the head speaks of is less than there is, if more has come since the frame began.
            sent = self.push_frame(p, frames.framed)
        if sent > 0:
            return sent if frames is None else frames.sent(sent)
        if sent == WANTS_WRITE:
            return sent
        if self.tls is None:
            self.reactor.doom(self, strerror(errno).decode())
        else:
            self.reactor.doom(self, self.tls.fault if sent == FAILED else "closed by the client")
        return FAILED

    cdef Py_ssize_t push_frame(self, const uint8_t* p, Py_ssize_t size) except -4:
        """Send some of what goes before the payload, and of the payload, with one call; returns how many of both."""
        cdef WebSocket frames = self.websocket
        cdef uint8_t* prefix = frames.prefix + frames.prefix_start
        cdef Py_ssize_t head = frames.prefix_end - frames.prefix_start, sent
        cdef iovec parts[2]
        cdef msghdr message
        if self.tls is not None:
            # A write that was blocked is tried again with the same bytes: they depend on nothing but the frame.
            size = min(size, RECORD_MOST - head)
            memcpy(self.reactor.record, prefix, head)
            memcpy(self.reactor.record + head, p, size)
            return self.tls.write(self.reactor.record, head + size)
        memset(&message, 0, sizeof(message))
        parts[0].iov_base, parts[0].iov_len = prefix, head
        parts[1].iov_base, parts[1].iov_len = <void*>p, size
        message.msg_iov, message.msg_iovlen = parts, 2
        sent = sendmsg(self.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            return WANTS_WRITE if errno == EAGAIN or errno == EINTR else FAILED
        return sent

    cdef int farewell(self) except -1:
        """Say on each layer that nothing more follows, as far as there is room for it."""
        if self.websocket is not None and self.websocket.ready:
            self.websocket.close(NORMAL if self.fault is None or self.lingering else PROTOCOL_ERROR)
            self.transmit()
        if self.tls is not None and not self.blocked:
            self.tls.shutdown()
        return 0

    cdef int parse(self) except -1:
        """Take the packets that came while none could be taken, then read on."""
        cdef Py_ssize_t used
        if self.closed:
            return 0
        if buffer_size(&self.incoming):
            used = self.feed(self.incoming.data + self.incoming.start, buffer_size(&self.incoming))
            self.incoming.start += used
            if buffer_size(&self.incoming) == 0:
                buffer_free(&self.incoming, &self.turn.pool)
        return self.check()

    cdef int check(self) except -1:
        """After packets were taken: end a connection with a fault, read on only when packets may be taken."""
        if self.fault is not None and not self.lingering:
            return self.reactor.doom(self, self.fault)
        if (self.parsing or self.lingering) and not self.throttled:
            if self.tls is not None and self.tls.more:
                self.reactor.feel_hungry(self)
            return self.ask(self.interest | EPOLLIN)
        return self.ask(self.interest & ~EPOLLIN)

    cdef int resume_reading(self) except -1:
        if self.phase == OPEN and not self.closed and not self.paused and not self.slowed:
            self.parsing = True
            self.slow_down()                       # its last packet was not asked, since it waited already
            self.parse()
        return 0

    def accept(self, Session session not None, int level, double keep_alive):
        Channel.accept(self, session, level, keep_alive)
        self.come_in()
        self.reactor.unschedule(self)              # its keep alive may run out before the time for CONNECT does
        self.reactor.schedule(self)

    def proceed(self):
        """For the handler: packets may be taken; if that is after `packet` or `publish` returned, what came meanwhile."""
        cdef bint waited = self.paused
        self.paused = False
        if not self.handing_up and not self.slowed:
            self.parsing = True
            if waited and self.turn.overloaded():  # what it waited for may have given the store more to do
                self.parsing = False
                self.turn.hold_back(self)
            self.slow_down()                       # as above
            self.parse()

    def close(self, str reason not None):
        """End the connection now; `ended` is called before this returns."""
        if not self.closed:
            self.flush()
            self.end(reason)

    def finish(self, str reason not None):
        """End the connection when the client has read what was sent, or after a while."""
        self.fault = reason
        self.phase = ENDED
        self.lingering = True
        self.parsing = False
        if buffer_size(&self.out) == 0:
            self.farewell()
            shutdown(self.fd, SHUT_WR)
        self.reactor.unschedule(self)
        self.reactor.schedule(self)

    cdef void heard_connect(self) noexcept:
        if self.expected and self.phase != EXPECTING:
            self.expected = False
            self.reactor.expected.pop(self.fd, None)

    cdef int end(self, str reason) except -1:
        cdef linger reset
        if self.closed:
            return 0
        if not self.unsettled and not self.lingering:
            self.farewell()
        self.closed = True
        self.phase = ENDED
        self.heard_connect()
        self.reason = reason
        self.reactor.unschedule(self)
        del self.reactor.connections[self.fd]
        self.reactor.buried.append(self)
        if self.unsettled:
            reset = linger(1, 0)
            setsockopt(self.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset))
        close(self.fd)                             # leaves the epoll set with it
        self.fd = -1
        self.turn.counters[CONNECTIONS_CLOSED] += 1
        self.entrance.listener.connections -= 1
        self.reactor.count_out(self)
        try:
            self.handler.ended(self, reason)
        except Exception as error:                 # others are to be ended too
            self.handler.failed(self, error)
        return 0


cdef class Reactor:
    """The sockets of a node.

    Args:
        router: of the node.
        handler: see the head of this file and of channel.pyx.
        wake: called with nothing when `run` should be called once more, soon.
    """

    def __cinit__(self):
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.door = epoll_create1(EPOLL_CLOEXEC)
        self.shared = <uint8_t*>malloc(READ_MOST + TAIL_MOST)
        self.record = <uint8_t*>malloc(RECORD_MOST)
        if self.epoll < 0 or self.door < 0 or self.shared == NULL or self.record == NULL:
            raise OSError("no epoll set or no memory")

    def __init__(self, Router router not None, handler, wake):
        self.router = router
        self.turn = router.turn
        self.handler = handler
        self.wake = wake
        prctl(PR_SET_TIMERSLACK, 1)                # a nap of 50 us is not to take 100
        mallopt(M_MMAP_THRESHOLD, KEPT_MOST)       # a turn's batches come and go: getting their pages anew from the
        mallopt(M_TRIM_THRESHOLD, KEPT_MOST)       # kernel each time costs more than filling them
        self.connections = {}
        self.expected = {}
        self.entrances = {}
        self.listeners = {}
        self.hungry = []
        self.slowed = []
        self.addresses = {}
        self.watch(self.door)
        self.paused = set()
        self.buried = []
        self.wheeled = self.turn.tick
        self.max_connections = <uint32_t>-1
        self.max_pending = <uint32_t>-1
        self.connect_ticks = 40

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.doomed.count):
            Py_DECREF(<object>self.doomed.items[i])
        pointers_free(&self.doomed)
        if self.door >= 0:
            close(self.door)
        if self.epoll >= 0:
            close(self.epoll)
        free(self.shared)
        free(self.record)

    def fileno(self):
        """Readable when `run` has something to do."""
        return self.epoll

    def __len__(self):
        """Open connections, with those that have not sent CONNECT."""
        return len(self.connections)

    def __iter__(self):
        return iter(list(self.connections.values()))

    @property
    def certificate_expires(self):
        """When the first certificate expires, in seconds since 1970; 0 without TLS."""
        return min([each.tls.expires for each in self.listeners.values() if each.tls is not None], default=0)

    @property
    def pending(self):
        """Connections that have not sent CONNECT."""
        return len(self.expected)

    # ---- listeners ----

    def listen(self, Endpoint entrance not None):
        """Accept connections from the entrance's socket."""
        fd = entrance.socket.fileno()
        self.entrances[fd] = entrance
        self.listeners[entrance.listener.name] = entrance.listener
        self.watch(fd)

    def adopt(self, connected not None, Endpoint entrance not None, str address=""):
        """Serve a connected socket that somebody else has accepted, and that is ours from now on.

        Args:
            connected: a socket.
            entrance: by which it counts as having come.
            address: HOST:PORT of the client, if it isn't the socket's peer.

        Returns:
            The connection; None if there is no place for it, which closes the socket.
        """
        cdef Connection c
        cdef uint8_t peer[28]
        memset(peer, 0, sizeof(peer))
        peer[0] = <uint8_t>connected.family
        connected.setblocking(False)
        self.listeners[entrance.listener.name] = entrance.listener
        if not self.has_room():
            connected.close()
            return None
        c = self.open(connected.detach(), peer, sizeof(peer), entrance)
        if c is not None and address:
            host, _, port = address.rpartition(":")
            at = ip_address(host.strip("[]"))
            c.move(socket.AF_INET if at.version == 4 else socket.AF_INET6, at.packed, int(port))
        return c

    def close(self):
        """Let go of the epoll sets; nothing may be asked of it after that. Else they go with the object."""
        if self.epoll >= 0:
            close(self.door)
            close(self.epoll)
            self.door = self.epoll = -1

    def stop_listening(self):
        """Close all listeners."""
        cdef Endpoint entrance
        for entrance in self.entrances.values():
            entrance.socket.close()
        self.entrances.clear()
        self.paused.clear()

    cdef object watch(self, int fd):
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.u64 = <uint64_t>fd << 1 | 1     # odd: not the address of a Connection
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))

    cdef int pause(self, int fd, bint starved) except -1:
        """Don't accept for now. New clients wait in the kernel, and nothing spins. `starved`: for want of room."""
        if fd not in self.paused:
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, NULL)
            self.paused.add(fd)
            self.paused_at = self.turn.tick
            if starved and not self.starved:
                self.starved = True
                self.handler.accepting(False)
            self.turn.counters[ACCEPT_PAUSES] += 1
        return 0

    cdef int unpause(self) except -1:
        if self.paused and self.has_room():
            for fd in self.paused:
                self.watch(fd)
            self.paused.clear()
        return 0

    cdef bint has_room(self) except -1:
        """Whether one more connection may be accepted; the one that has not said CONNECT for longest may go for it."""
        cdef Connection oldest
        if len(self.connections) >= self.max_connections:
            return False
        if len(self.expected) < self.max_pending:
            return True
        oldest = next(iter(self.expected.values()))
        if self.turn.tick - oldest.last_seen < PATIENCE_TICKS:
            return False
        self.turn.counters[CONNECT_TIMEOUTS] += 1
        oldest.end("no CONNECT, and others wait")
        return True

    cdef int accept(self, int listener) except -1:
        cdef Endpoint entrance = self.entrances[listener]
        cdef int64_t began = now()
        cdef uint8_t peer[28]
        cdef uint32_t size
        cdef int fd, i
        for i in range(ACCEPTS_MOST):
            if not self.has_room():
                return self.pause(listener, True)
            if not meter_has(&entrance.listener.accepted_lately, entrance.listener.connects, self.turn.tick):
                return self.pause(listener, False)
            size = sizeof(peer)
            fd = accept4(listener, <sockaddr*>peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    return self.pause(listener, True)
                if errno == ECONNABORTED or errno == EINTR:
                    continue
                return 0
            meter_use(&entrance.listener.accepted_lately, entrance.listener.connects, 1, self.turn.tick)
            if entrance.listener.connections >= entrance.listener.max_connections:
                close(fd)
                entrance.listener.refused += 1
                self.turn.counters[CONNECTIONS_REFUSED] += 1
                continue
            self.open(fd, peer, size, entrance)
            if i & 15 == 15 and now() - began > NEWCOMERS_TIME:
                break
        return 0

    cdef Connection open(self, int fd, const uint8_t* peer, uint32_t size, Endpoint entrance):
        """A connection on this socket, which is its own from now on; None if it can't be."""
        cdef Connection c = Connection(self.router, self.handler)
        cdef epoll_event event
        cdef int[3] credentials                    # process, user, group: struct ucred
        c.reactor = self
        c.fd = fd
        c.entrance = entrance
        memcpy(c.peer, peer, min(size, sizeof(c.peer)))
        if c.peer[0] == socket.AF_UNIX:
            size = sizeof(credentials)
            getsockopt(fd, SOL_SOCKET, SO_PEERCRED, credentials, &size)
            memcpy(c.peer + 4, &credentials[1], 4)
        event.events = c.interest = EPOLLIN
        event.data.u64 = <uint64_t><uintptr_t><void*>c
        c.at_door = True
        if epoll_ctl(self.door, EPOLL_CTL_ADD, fd, &event) < 0:
            return None                            # the object closes the socket
        self.connections[fd] = c
        c.expected = True
        self.expected[fd] = c
        if self.starved and not self.paused:
            self.starved = False
            self.handler.accepting(True)
        self.turn.counters[CONNECTIONS_OPENED] += 1
        entrance.listener.accepted += 1
        entrance.listener.connections += 1
        self.schedule(c)
        if entrance.websocket:
            c.websocket = WebSocket()
        c.metered = entrance.listener.metered()
        c.proxied = entrance.trusts is not None
        c.opening = c.proxied or entrance.secure
        if c.proxied and not entrance.trusts(c.address):
            c.refuse("not from a trusted proxy")
            c.end(c.fault)                         # at once: it takes no place of those that have not sent CONNECT
        elif not c.proxied and not self.count_in(c):
            c.end(c.fault)
        return c

    cdef bint count_in(self, Connection c) except -1:
        """Count the connection among those of its address; False if there are too many, which refuses it."""
        cdef uint32_t most = c.entrance.listener.max_per_address
        cdef bytes origin = c.origin() if most else b""
        if not origin:
            return True
        known = self.addresses.get(origin, 0)
        if known >= most:
            c.entrance.listener.refused += 1
            self.turn.counters[CONNECTIONS_REFUSED] += 1
            c.refuse("too many connections from its address")
            return False
        self.addresses[origin] = known + 1
        c.counted = True
        return True

    cdef int count_out(self, Connection c) except -1:
        if c.counted:
            c.counted = False
            origin = c.origin()
            self.addresses[origin] -= 1
            if self.addresses[origin] == 0:
                del self.addresses[origin]
        return 0

    def meter(self):
        """Rates of listeners have changed: let connections keep to those of today."""
        cdef Connection c
        for c in self.connections.values():
            c.metered = c.entrance.listener.metered()

    # ---- a turn ----

    def valid_for(self, double seconds):
        """Serve nobody after this time, but call `overdue`; 0 = there is no such time."""
        self.valid_until = now() + <int64_t>(seconds * 1e9) if seconds else 0

    def run(self):
        """One turn: everything that is readable now, and its consequences."""
        cdef epoll_event events[EVENTS_MOST]
        cdef int count, i
        cdef uint64_t what
        cdef Connection c
        cdef bint napped, newcomers = False
        cdef uint64_t before
        if self.valid_until and now() > self.valid_until:
            self.overdue()
            return
        napped = self.nap()
        before = self.turn.counters[PACKETS_RECEIVED]
        self.soon = False
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS_MOST, 0)
        for i in range(count):
            what = events[i].data.u64
            if what & 1:
                if <int>(what >> 1) == self.door:
                    newcomers = True
                elif <int>(what >> 1) in self.entrances:
                    self.accept(<int>(what >> 1))
                continue
            self.serve(<Connection><void*><uintptr_t>what, events[i].events)
        if newcomers:
            self.let_in()
        if self.hungry:
            hungry, self.hungry = self.hungry, []
            for c in hungry:
                c.hungry = False
                self.serve(c, c.interest & EPOLLIN)
        self.settle()
        self.crowd = self.turn.counters[PACKETS_RECEIVED] - before
        if napped:
            self.after_nap += (<double>self.crowd - self.after_nap) / 4
        else:
            self.after_none += (<double>self.crowd - self.after_none) / 4
        self.left = now()

    cdef int let_in(self) except -1:
        """Serve some of those that have not been let in: a storm of them holds up the others by no more than that.

        Those that are left are ready still in the next turn, and come before those that were served.
        """
        cdef epoll_event events[NEWCOMERS_MOST]
        cdef int64_t began = now()
        cdef int count, i
        with nogil:
            count = epoll_wait(self.door, events, NEWCOMERS_MOST, 0)
        for i in range(count):
            self.serve(<Connection><void*><uintptr_t>events[i].data.u64, events[i].events)
            if now() - began > NEWCOMERS_TIME:
                break
        return 0

    cdef int serve(self, Connection c, uint32_t events) except -1:
        """Do what epoll says can be done."""
        if c.closed:
            return 0
        try:
            if events & EPOLLOUT:
                c.flush()
                if c.turned and not c.closed:
                    c.turned = False
                    if not c.blocked:
                        c.ask(c.interest & ~EPOLLOUT)
                    c.check()
                    events |= EPOLLIN
            if events & (EPOLLIN | EPOLLERR | EPOLLHUP) and not c.closed:
                self.readable(c)
        except Exception as error:                    # a fault of ours: it must not cost the others their turn
            self.handler.failed(c, error)
            self.doom(c, "a fault of the broker; see its log")
        return 0

    cdef int feel_hungry(self, Connection c) except -1:
        """Read on in the next turn, whether something comes or not."""
        if not c.hungry:
            c.hungry = True
            self.hungry.append(c)
        return 0

    cdef bint nap(self) noexcept:
        """Wait a moment for more to come, when turns follow each other so fast that each carries little.

        Being woken for every message costs several times what the message costs. Like a network card's interrupt
        moderation this trades some 50 microseconds for that, and only while it makes turns larger: clients that wait
        for each other's answers are not held up.
        """
        cdef timespec moment
        cdef int64_t idle = now() - self.left
        self.idle += (min(idle, NAP_IDLE * 8) - self.idle) / 8
        if self.soon or self.crowd >= NAP_CROWD or self.idle > NAP_IDLE:
            return False
        self.busy_turns += 1
        if (self.after_nap >= NAP_WORTH * self.after_none) == (self.busy_turns % NAP_PROBE == 0):
            return False
        moment.tv_sec = 0
        moment.tv_nsec = NAP
        with nogil:
            nanosleep(&moment, NULL)
        return True

    def settle(self):
        """End a turn: end what is doomed, store, write. Whoever changed something outside `run` calls this."""
        self.bury()
        again = self.turn.end()
        self.bury()
        if (again or self.turn.dirty.count or self.turn.pumped.count or self.hungry) and not self.soon:
            self.soon = True
            self.wake()
        self.buried.clear()

    cdef int readable(self, Connection c) except -1:
        cdef Py_ssize_t have, room
        cdef uint8_t* p
        cdef ssize_t got
        cdef bint upgrading, direct
        if c.opening and not self.prepare(c):
            return 0
        have = buffer_size(&c.incoming)
        upgrading = c.websocket is not None and not c.websocket.ready
        direct = (have > TAIL_MOST or c.need > READ_MOST) and not upgrading
        if buffer_size(&c.out) > self.turn.limits.max_outgoing_bytes:
            # It asks (PINGREQ, SUBSCRIBE, QoS 1) and doesn't read the answers: those must not pile up.
            c.throttled = True
            self.turn.counters[READ_PAUSES] += 1
            return c.check()
        if direct:
            # A large packet is read into its own buffer, which grows with what has come, never ahead of it.
            room = <Py_ssize_t>c.need - have
            room = min(room, max(have, TAIL_MOST * 16), DIRECT_MOST) if room > 0 else TAIL_MOST
            p = buffer_reserve(&c.incoming, &self.turn.pool, room)
            if p == NULL:
                return self.doom(c, "out of memory")
        else:
            p = self.shared + have
            room = READ_MOST + TAIL_MOST - have
            if c.metered:
                room = min(room, READ_METERED)
        got = recv(c.fd, p, room, MSG_DONTWAIT) if c.tls is None else c.tls.read(p, room)
        if got <= 0:
            self.unread(c, got)
            return 0
        self.turn.counters[BYTES_RECEIVED] += got
        c.entrance.listener.bytes_received += got
        if c.tls is not None and c.tls.more:
            self.feel_hungry(c)
        if c.lingering:
            return 0
        if c.websocket is not None and not upgrading:
            got = c.websocket.decode(p, got)
        if got:                                    # frames without payload are no sign of life [MQTT-3.1.2-24]
            c.last_seen = self.turn.tick
        if direct:
            c.incoming.end += got
            if have + got >= <Py_ssize_t>c.need:
                c.parse()
        else:
            if have:
                memcpy(self.shared, c.incoming.data + c.incoming.start, have)
                buffer_free(&c.incoming, &self.turn.pool)
            self.take_in(c, have + got)
        if c.websocket is not None:
            self.consider(c)
        if c.fault is not None or not c.parsing:
            c.check()
        return 0

    cdef int take_in(self, Connection c, Py_ssize_t n) except -1:
        """Act on the first `n` bytes of the shared buffer; the connection keeps what is incomplete."""
        cdef Py_ssize_t used = 0
        if c.websocket is not None and not c.websocket.ready:
            used = self.upgrade(c, n)
            if used:                               # what follows the request at once is frames already
                n = used + c.websocket.decode(self.shared + used, n - used)
        if c.websocket is None or c.websocket.ready:
            used += c.feed(self.shared + used, n - used)
            c.heard_connect()
        if used < n and not c.closed and buffer_append(&c.incoming, &self.turn.pool, self.shared + used, n - used) < 0:
            return self.doom(c, "out of memory")
        return 0

    cdef bint unread(self, Connection c, Py_ssize_t result) except -1:
        """Reading returned no bytes: the client has gone, there is a fault, or it is to be tried again; False."""
        if result == 0:
            self.doom(c, c.fault if c.lingering else "closed by the client")
        elif c.tls is None:
            if errno != EAGAIN and errno != EINTR:
                self.doom(c, strerror(errno).decode())
        elif result == WANTS_WRITE:
            c.turned = True
            c.ask((c.interest | EPOLLOUT) & ~EPOLLIN)
        elif result == FAILED:
            self.doom(c, c.tls.fault)
        return False

    # ---- layers ----

    cdef bint prepare(self, Connection c) except -1:
        """Take what comes before the first byte of MQTT or HTTP; returns whether all of it has come."""
        if c.proxied and not self.unwrap(c):
            return False
        if c.entrance.secure and not self.handshake(c):
            return False
        c.opening = False
        return True

    cdef bint unwrap(self, Connection c) except -1:
        """Take the PROXY protocol header as far as it has come, and no byte after it: those may be TLS's."""
        cdef Py_ssize_t have = buffer_size(&c.incoming), size
        cdef ssize_t got
        memcpy(self.shared, c.incoming.data + c.incoming.start, have)
        got = recv(c.fd, self.shared + have, <Py_ssize_t>HEADER_MOST - have, MSG_PEEK | MSG_DONTWAIT)
        if got <= 0:
            return self.unread(c, got)
        try:
            size, client = read_proxy_header(self.shared[:have + got])
        except ValueError as error:
            c.refuse(str(error))
            c.check()
            return False
        if size:
            got = size - have
        got = recv(c.fd, self.shared + have, got, MSG_DONTWAIT)
        self.turn.counters[BYTES_RECEIVED] += got
        if not size:                               # incomplete, so all that has come belongs to it
            if buffer_append(&c.incoming, &self.turn.pool, self.shared + have, got) < 0:
                self.doom(c, "out of memory")
            return False
        buffer_free(&c.incoming, &self.turn.pool)
        c.proxied = False
        if client is not None:
            family, address, port = client
            c.move(family, address, port)
        if not self.count_in(c):
            c.check()
            return False
        return True

    cdef bint handshake(self, Connection c) except -1:
        """A step of TLS's handshake; returns whether it is done. It takes the time of its own cryptography."""
        cdef Py_ssize_t result
        if c.tls is None:
            c.tls = Tls(c.entrance.listener.tls, c.fd)
        result = c.tls.handshake()
        if result == 1:
            self.turn.counters[TLS_HANDSHAKES] += 1
            c.certificate = c.tls.certificate()
            return True
        if result == FAILED:
            self.turn.counters[TLS_FAILURES] += 1
            c.fault = c.tls.fault
        return self.unread(c, result)

    cdef Py_ssize_t upgrade(self, Connection c, Py_ssize_t n) except -1:
        """Answer the HTTP request in the first `n` bytes; returns its size, 0 if it is incomplete or refused."""
        cdef uint8_t* end = <uint8_t*>memmem(self.shared, min(n, <Py_ssize_t>REQUEST_MOST), b"\r\n\r\n", 4)
        cdef Py_ssize_t size = end + 4 - self.shared if end != NULL else 0
        if not size and n < REQUEST_MOST and self.shared[0] == c'G':
            return 0
        answer, fault = c.entrance.upgrade(self.shared[:size], c.tls is not None)
        c.send(answer)
        c.websocket.framed = len(answer)           # these bytes go without a frame
        if not fault:
            c.websocket.ready = True
            return size
        self.turn.counters[WEBSOCKET_FAILURES] += 1
        c.flush()
        c.finish(fault)
        return 0

    cdef int consider(self, Connection c) except -1:
        """After frames were taken: is one to be answered, or is this the end?"""
        if c.websocket.code == 0:
            return c.flush() if c.websocket.answer_size else 0
        if c.websocket.fault is None:
            return self.doom(c, "closed by the client")
        if c.fault is None:
            self.turn.counters[WEBSOCKET_FAILURES] += 1
            c.refuse(c.websocket.fault)
        return 0

    cdef int doom(self, Connection c, str reason) except -1:
        """End the connection at the end of the turn."""
        if c.reason is None:
            c.reason = reason
            Py_INCREF(c)
            if pointers_push(&self.doomed, <void*>c) < 0:
                raise MemoryError
        c.phase = ENDED
        c.parsing = False
        return 0

    cdef int bury(self) except -1:
        cdef Py_ssize_t i = 0
        cdef Connection c
        while i < self.doomed.count:               # ending one may doom others
            c = <Connection>self.doomed.items[i]
            if buffer_size(&c.out) or (c.websocket is not None and c.websocket.owes()):
                c.flush()                          # answers to what came before the fault
            c.end(c.reason)
            Py_DECREF(c)
            i += 1
        self.doomed.count = 0
        return 0

    # ---- time ----

    def advance(self, uint32_t ticks):
        """Let `ticks` quarters of a second pass: look at the connections that are due."""
        cdef Connection c
        cdef uint32_t slot
        cdef void* item
        cdef void* following
        self.turn.advance(ticks)
        while self.wheeled != self.turn.tick:
            self.wheeled += 1
            slot = self.wheeled % WHEEL_SLOTS
            item = self.wheel[slot]
            while item != NULL:
                c = <Connection>item
                following = c.wheel_next
                self.unschedule(c)
                if c.due <= self.wheeled:
                    self.inspect(c)
                else:
                    self.place(c)                  # further away than the wheel spans
                item = following
        if self.paused and self.turn.tick - self.paused_at >= PAUSE_TICKS:
            self.unpause()
        self.hurry()
        self.turn.seal()                           # records that nobody waits for
        self.settle()

    cdef int hurry(self) except -1:
        """Read on from those whose rates allow it again; who waited longest is first."""
        cdef Connection c
        cdef list waiting = []
        slowed, self.slowed = self.slowed, []
        for c in slowed:
            if c.closed or c.phase != OPEN:
                continue
            if not c.may_go_on():
                waiting.append(c)
                continue
            c.slowed = False
            if not c.paused:
                c.parsing = True
                try:
                    c.parse()                      # may slow it down once more: it then comes after the others
                except Exception as error:         # a fault of ours: the others are to go on
                    self.handler.failed(c, error)
                    self.doom(c, "a fault of the broker; see its log")
        self.slowed = waiting + self.slowed
        return 0

    cdef int schedule(self, Connection c) except -1:
        """Look at the connection when it can next have been silent too long; never, if it may be for ever."""
        cdef uint32_t ticks
        if c.lingering:
            ticks = LINGER_TICKS
        elif c.phase == OPEN:
            ticks = c.patience
            if ticks:
                ticks -= min(ticks - 1, self.turn.tick - c.last_seen)
            if self.retry_ticks and c.level == 3 and (ticks == 0 or self.retry_ticks < ticks):
                ticks = self.retry_ticks
            if ticks == 0:
                return 0
        else:
            ticks = max(1, self.connect_ticks)
        c.due = self.turn.tick + ticks
        return self.place(c)

    cdef int place(self, Connection c) except -1:
        """Into the slot of its tick, or into the last one."""
        c.slot = (self.wheeled + min(max(c.due - self.wheeled, 1), WHEEL_SLOTS - 1)) % WHEEL_SLOTS
        c.wheel_previous = NULL
        c.wheel_next = self.wheel[c.slot]
        if c.wheel_next != NULL:
            (<Connection>c.wheel_next).wheel_previous = <void*>c
        self.wheel[c.slot] = <void*>c
        return 0

    cdef int unschedule(self, Connection c) except -1:
        if c.slot < 0:
            return 0
        if c.wheel_next != NULL:
            (<Connection>c.wheel_next).wheel_previous = c.wheel_previous
        if c.wheel_previous != NULL:
            (<Connection>c.wheel_previous).wheel_next = c.wheel_next
        else:
            self.wheel[c.slot] = c.wheel_next
        c.wheel_next = c.wheel_previous = NULL
        c.slot = -1
        return 0

    cdef int inspect(self, Connection c) except -1:
        """The connection is due: end it if it was silent too long."""
        cdef uint8_t byte
        if c.lingering:
            return self.doom(c, c.fault)
        if c.phase == EXPECTING:
            self.turn.counters[CONNECT_TIMEOUTS] += 1
            return self.doom(c, "no CONNECT in time")
        if c.phase == OPEN:
            if c.patience and self.turn.tick - c.last_seen >= c.patience and (
                    recv(c.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 or not c.parsing):
                # We did not read: it is held back, or the whole process stood still for a while.
                c.last_seen = self.turn.tick
            if c.patience and self.turn.tick - c.last_seen >= c.patience:
                self.turn.counters[KEEP_ALIVE_TIMEOUTS] += 1
                return self.doom(c, "keep alive ran out [MQTT-3.1.2-24]")
            if self.retry_ticks and c.level == 3:
                c.session.resend_if_older(self.retry_ticks)
        return self.schedule(c)
