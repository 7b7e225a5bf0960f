"""A connection of the node itself to another server. A turn reads it with the sockets of clients, and writes it last.

So its input and the input of clients are one turn, and no Python runs between its socket and its handler. While the
reactor serves no clients, the event loop watches it. The socket has its own epoll set: an observer of the set watches
one descriptor, for input only, also while the socket takes no more output.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint64_t

from ..base.buffers cimport buffer_free, buffer_reserve, buffer_size
from .posix cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, close, epoll_create1,
    epoll_ctl, epoll_event, recv, send,
)


cdef class OutgoingConnection(Outlet):
    """A connection of the node.

    Args:
        reactor: serves it.
    """

    def __init__(self, Reactor reactor not None):
        self.reactor = reactor
        self.turn = reactor.turn
        self.fd = self.epoll = -1
        self.sendable = -1
        self.closed = True

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
            close(self.epoll)
        if self.turn is not None:
            buffer_free(&self.incoming, &self.turn.pool)

    cdef int handle_input(self) except -1:
        """Handle bytes of `incoming`, and remove them from it."""
        return 0

    cdef int ended(self) except -1:
        """Called once, when the connection has ended, at whatever side."""
        return 0

    def serve(self, connected not None):
        """Serve a connected socket, and take ownership of it."""
        cdef epoll_event event
        connected.setblocking(False)
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "no epoll set")
        self.fd = connected.detach()
        event.events = EPOLLIN
        event.data.u64 = 0
        epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.fd, &event)
        self.closed = False
        self.reactor.add_reader(self.epoll, self.ready)

    @property
    def open(self):
        """Whether output can be sent."""
        return not self.closed

    def ready(self):
        """Send what the socket takes again, and handle what has arrived. Returns the number of publications in it."""
        cdef uint64_t before = self.publications
        cdef uint8_t* p
        cdef Py_ssize_t room
        cdef ssize_t got
        if self.closed:
            return 0
        if self.blocked:
            self.blocked = False
            self.watch_output(False)
            self.flush()                               # at the end of the turn
        p = buffer_reserve(&self.incoming, &self.turn.pool, STREAM_READ)
        if p == NULL:
            raise MemoryError
        room = self.incoming.capacity - self.incoming.end
        got = recv(self.fd, p, room, MSG_DONTWAIT)
        if got > 0:
            self.incoming.end += got
            self.handle_input()
        elif got == 0 or (errno != EAGAIN and errno != EINTR):
            self.hang_up()
        if not self.closed and buffer_size(&self.incoming) == 0:
            buffer_free(&self.incoming, &self.turn.pool)
        return self.publications - before

    cdef int flush(self) except -1:
        cdef ssize_t sent
        cdef Py_ssize_t size = buffer_size(&self.out) if self.sendable < 0 else self.sendable
        if self.closed or self.blocked or size == 0:
            return 0
        if self.reactor.in_turn and self.reactor.last is not None:
            self.reactor.last.append(self)             # other outlets may still write to it: all of it is one call
            return 0
        sent = send(self.fd, self.out.data + self.out.start, size, MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            # If the connection has ended, the next read finds it: not here, where all connections are being written.
            sent = 0 if errno == EAGAIN or errno == EINTR else size
        self.out.start += sent
        if self.sendable > 0:
            self.sendable -= sent
        if buffer_size(&self.out) == 0:
            buffer_free(&self.out, &self.turn.pool)
        elif sent < size:
            self.blocked = True
            self.watch_output(True)
        return 0

    cdef int flush_soon(self) except -1:
        """Output was added: send it at the end of the turn; outside of a turn, when the caller has returned."""
        if not self.reactor.in_turn and not self.flush_requested:
            self.flush_requested = True
            self.reactor.driver.call_soon(self.flush_requested_output)
        return 0

    def flush_requested_output(self):
        """Send the output that was added outside of a turn."""
        self.flush_requested = False
        self.flush()

    cdef int watch_output(self, bint wanted) noexcept:
        cdef epoll_event event
        event.events = EPOLLIN | (EPOLLOUT if wanted else 0)
        event.data.u64 = 0
        return epoll_ctl(self.epoll, EPOLL_CTL_MOD, self.fd, &event)

    cdef int hang_up(self) except -1:
        """Close the socket."""
        if self.closed:
            return 0
        self.closed = True
        self.reactor.remove_reader(self.epoll)
        close(self.fd)
        close(self.epoll)
        self.fd = self.epoll = -1
        buffer_free(&self.out, &self.turn.pool)
        buffer_free(&self.incoming, &self.turn.pool)
        self.ended()
        return 0
