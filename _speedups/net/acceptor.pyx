"""Accepts connections: endpoints, and the limits of all connections, of pending ones and of each listener.

A part of the reactor (`Acceptor` is its base class) that does not depend on turns.
"""

from libc.errno cimport ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from ..base.rate_limit cimport charge_rate, has_rate
from .address cimport address_set
from .posix cimport (
    AF_UNIX, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, SO_PEERCRED, SOCK_CLOEXEC, SOCK_NONBLOCK, SOL_SOCKET, accept4,
    close, epoll_ctl, epoll_event, getsockopt, now, sockaddr,
)
from .websocket cimport WebSocket
from ..routing.router cimport Router
from ..session.counters cimport ACCEPT_PAUSES, CONNECT_TIMEOUTS, CONNECTIONS_OPENED, CONNECTIONS_REFUSED

import os
import socket
from ipaddress import ip_address
from ..protocol import close_reasons

cdef enum:
    ACCEPTS_MAX = 128          # connections accepted from one endpoint in one turn
    CONNECT_PATIENCE_TICKS = 8 # how long CONNECT may take while new clients wait for a place


cdef class Acceptor(Loop):
    """A loop that accepts connections.

    Args:
        router: the node's router.
        handler: its `accepting(bool)` is called when accepting stops for lack of room, and when it resumes.
    """

    def __init__(self, Router router not None, handler):
        Loop.__init__(self, router, handler)
        self.endpoints = {}
        self.listeners = {}
        self.paused = set()
        self.max_connections = <uint32_t>-1
        self.max_pending = <uint32_t>-1

    def __iter__(self):
        return iter([each for each in self.connections if each is not None])

    @property
    def certificate_expires(self):
        """When the first certificate expires, in seconds since 1970; 0 without TLS."""
        return min([each.tls.expires for each in self.listeners.values() if each.tls is not None], default=0)

    @property
    def pending_connects(self):
        """Number of connections that have not sent CONNECT."""
        return len(self.awaiting_connect)

    @property
    def connections_by_address(self):
        """Connections of listeners that limit them by address: packed IPv4 address or IPv6 network -> their number."""
        return dict(self.addresses)

    def set_limits(self, *, uint32_t max_pending, uint32_t connect_ticks, uint32_t retry_ticks):
        """The limits of the configuration.

        Args:
            max_pending: connections that have not sent CONNECT.
            connect_ticks: quarters of a second that CONNECT may take.
            retry_ticks: quarters of a second after which level 3 gets again what it has not acknowledged; 0 = never.
        """
        self.max_pending = max_pending
        self.connect_ticks = connect_ticks
        self.retry_ticks = retry_ticks

    def set_max_connections(self, uint32_t max_connections):
        """Accept no more connections than this."""
        self.max_connections = max_connections

    def listen(self, Endpoint endpoint not None):
        """Accept connections from the endpoint's socket."""
        fd = endpoint.socket.fileno()
        self.endpoints[fd] = endpoint
        self.listeners[endpoint.listener.name] = endpoint.listener
        self.watch(fd)

    def adopt(self, connected not None, Endpoint endpoint not None, str address=""):
        """Serve a connected socket that was accepted elsewhere, and take ownership of it.

        Args:
            connected: a socket.
            endpoint: the endpoint that counts as having accepted it.
            address: HOST:PORT of the client, if it is not the socket's peer.

        Returns:
            The connection; None if there is no place for it; the socket is then closed.
        """
        cdef Connection c
        cdef uint8_t peer[28]
        memset(peer, 0, sizeof(peer))
        peer[0] = <uint8_t>connected.family
        connected.setblocking(False)
        self.listeners[endpoint.listener.name] = endpoint.listener
        if not self.has_room():
            connected.close()
            return None
        c = self.open(connected.detach(), peer, sizeof(peer), endpoint)
        if c is not None and address:
            host, _, port = address.rpartition(":")
            at = ip_address(host.strip("[]"))
            address_set(&c.peer, socket.AF_INET if at.version == 4 else socket.AF_INET6, at.packed, int(port))
        return c

    def stop_listening(self):
        """Close all listeners."""
        cdef Endpoint endpoint
        for endpoint in self.endpoints.values():
            endpoint.socket.close()
        self.endpoints.clear()
        self.paused.clear()

    cdef object watch(self, int fd, uint32_t flags=0):
        cdef epoll_event event
        event.events = EPOLLIN | flags
        event.data.u64 = <uint64_t>fd << 1 | 1     # odd: not the address of a Connection
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))

    cdef int pause(self, int fd, bint at_capacity) except -1:
        """Stop accepting for now: new clients wait in the kernel. `at_capacity`: there is no room for them."""
        if fd not in self.paused:
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, NULL)
            self.paused.add(fd)
            self.paused_at = self.turn.tick
            if at_capacity and not self.at_capacity:
                self.at_capacity = True
                self.handler.accepting(False)
            self.turn.counters[ACCEPT_PAUSES] += 1
        return 0

    cdef int resume_accepting(self) except -1:
        if self.paused and self.has_room():
            for fd in self.paused:
                self.watch(fd)
            self.paused.clear()
        return 0

    cdef bint has_room(self) except -1:
        """Whether one more connection may be accepted; may end the oldest one that has not sent CONNECT."""
        cdef Connection oldest
        if self.connection_count >= <Py_ssize_t>self.max_connections:
            return False
        if len(self.awaiting_connect) < self.max_pending:
            return True
        oldest = next(iter(self.awaiting_connect.values()))
        if self.turn.tick - oldest.last_seen < CONNECT_PATIENCE_TICKS:
            return False
        self.turn.counters[CONNECT_TIMEOUTS] += 1
        oldest.end(close_reasons.CONNECT_EVICTED)
        return True

    cdef int accept(self, int listener) except -1:
        cdef Endpoint endpoint = self.endpoints[listener]
        cdef int64_t began = now()
        cdef uint8_t peer[28]
        cdef uint32_t size
        cdef int fd, i
        for i in range(ACCEPTS_MAX):
            if not self.has_room():
                return self.pause(listener, True)
            if not has_rate(&endpoint.listener.accepted_lately, endpoint.listener.connects, self.turn.tick):
                return self.pause(listener, False)
            size = sizeof(peer)
            fd = accept4(listener, <sockaddr*>peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    return self.pause(listener, True)
                if errno == ECONNABORTED or errno == EINTR:
                    continue
                return 0
            charge_rate(&endpoint.listener.accepted_lately, endpoint.listener.connects, 1, self.turn.tick)
            if endpoint.listener.connections >= endpoint.listener.max_connections:
                close(fd)
                endpoint.listener.refused += 1
                self.turn.counters[CONNECTIONS_REFUSED] += 1
                continue
            self.open(fd, peer, size, endpoint)
            if i & 15 == 15 and now() - began > ACCEPT_TIME:
                break
        return 0

    cdef Connection open(self, int fd, const uint8_t* peer, uint32_t size, Endpoint endpoint):
        """Create a connection, which owns the socket from now on; None on failure."""
        cdef Connection c = Connection(self.router, self.handler)
        cdef epoll_event event
        cdef int[3] credentials                    # process, user, group: struct ucred
        c.loop = self
        c.fd = fd
        c.endpoint = endpoint
        memcpy(c.peer.bytes, peer, min(size, sizeof(c.peer.bytes)))
        if c.peer.bytes[0] == AF_UNIX:
            size = sizeof(credentials)
            getsockopt(fd, SOL_SOCKET, SO_PEERCRED, credentials, &size)
            memcpy(c.peer.bytes + 4, &credentials[1], 4)
        event.events = c.interest = EPOLLIN
        event.data.u64 = <uint64_t><uintptr_t><void*>c
        c.is_pending = True
        if epoll_ctl(self.pending_epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            return None                            # the object closes the socket
        while len(self.connections) <= fd:
            self.connections.append(None)
        self.connections[fd] = c
        self.connection_count += 1
        c.awaits_connect = True
        self.awaiting_connect[fd] = c
        if self.at_capacity and not self.paused:
            self.at_capacity = False
            self.handler.accepting(True)
        self.turn.counters[CONNECTIONS_OPENED] += 1
        endpoint.listener.accepted += 1
        endpoint.listener.connections += 1
        c.restart_timer()
        if endpoint.websocket:
            c.websocket = WebSocket()
        c.meter()
        c.in_proxy_header = endpoint.trusts is not None
        c.in_preamble = c.in_proxy_header or endpoint.secure
        if c.in_proxy_header and not endpoint.trusts(c.address):
            c.protocol_error(close_reasons.UNTRUSTED_PROXY)
            c.end(c.fault)                         # at once: it uses no pending place
        elif not c.in_proxy_header and not c.count_address():
            c.end(c.fault)
        return c
