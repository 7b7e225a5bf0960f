"""The state that all connections of a node share. The reactor derives from it and runs it.

Connections refer to this class, not to the reactor. They can be built and tested without it, and the modules do not
import each other in a circle.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from .posix cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_DEL, MSG_DONTWAIT, SHUT_WR, close, epoll_create1, epoll_ctl, recv, shutdown,
)
from .tls cimport RECORD_MAX
from ..session.turn cimport release

cdef enum:
    DEPARTING_MAX = 1000       # sockets that are closed later
    DEPARTING_READS = 16       # of 4 KiB, of each in a tick
    DEPARTING_TICKS = 8        # how long a client may take to read the last packet


cdef class Loop:
    """The shared state.

    Args:
        router: the node's router.
        handler: see reactor.pyx and channel.pyx.
    """

    def __cinit__(self):
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.pending_epoll = epoll_create1(EPOLL_CLOEXEC)
        self.shared = <uint8_t*>malloc(READ_MAX + TAIL_MAX)
        self.record = <uint8_t*>malloc(RECORD_MAX)
        if self.epoll < 0 or self.pending_epoll < 0 or self.shared == NULL or self.record == NULL:
            raise OSError("no epoll set or no memory")
        self.connections = []
        self.awaiting_connect = {}
        self.addresses = {}
        self.rate_limited = []
        self.read_again = []
        self.departing = {}
        self.closed_this_turn = []
        self.heirs = []
        self.connect_ticks = 40

    def __init__(self, Router router not None, handler):
        self.router = router
        self.turn = router.turn
        self.handler = handler
        self.wheel.now = self.turn.tick

    def __dealloc__(self):
        release(&self.to_close)
        if self.epoll >= 0:
            close(self.pending_epoll)
            close(self.epoll)
        free(self.shared)
        free(self.record)

    def attach(self, handler):
        """Pass packets that are not hot to this handler; to be called before the first connection."""
        self.handler = handler

    def close(self):
        """Close the epoll sets, and the departing sockets; the loop must not be used after that.

        Otherwise the object's deallocation closes the sets. It can't close the sockets: if the collector frees the
        object, it has cleared `departing` before.
        """
        for fd in self.departing:
            close(fd)
        self.departing.clear()
        if self.epoll >= 0:
            close(self.pending_epoll)
            close(self.epoll)
            self.pending_epoll = self.epoll = -1

    def abandon(self):
        """Forget all that waits for a turn or for the store: the node drops this state, and no more turns follow.

        The departing sockets stay, for a successor (`succeed`).
        """
        release(&self.to_close)
        self.turn.abandon()

    def succeed(self, Loop before not None):
        """Take the departing sockets of a loop that is abandoned: their clients may still read the last packet."""
        for fd in before.departing:
            self.departing[fd] = self.turn.tick + DEPARTING_TICKS
        before.departing.clear()

    cdef int leave(self, int fd, bint pending) except -1:
        """Close a socket when its client has read the last packet, or after a while.

        To close at once would reset a connection with unread input, and the client could lose the packet.
        """
        if len(self.departing) >= DEPARTING_MAX:
            close(fd)
            return 0
        epoll_ctl(self.pending_epoll if pending else self.epoll, EPOLL_CTL_DEL, fd, NULL)
        shutdown(fd, SHUT_WR)
        self.departing[fd] = self.turn.tick + DEPARTING_TICKS
        return 0

    cdef int close_departing(self) except -1:
        """Close the departing sockets whose clients have closed, or whose time is over.

        Their input is read first: a socket with unread input is reset, and a client behind a broken network may never
        notice that. The end of another one is sent again by the kernel until it has arrived.
        """
        cdef uint8_t input[4096]
        cdef ssize_t got
        cdef int reads
        for fd, deadline in list(self.departing.items()):
            for reads in range(DEPARTING_READS):
                got = recv(fd, input, sizeof(input), MSG_DONTWAIT)
                if got < <ssize_t>sizeof(input):
                    break
            if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR) or <int64_t>deadline <= self.turn.tick:
                del self.departing[fd]
                close(fd)
        return 0

    def fileno(self):
        """A file descriptor that is readable when a turn has work."""
        return self.epoll

    def __len__(self):
        """Open connections, also before CONNECT."""
        return self.connection_count

    @property
    def pending(self):
        """Connections that have not sent CONNECT."""
        return len(self.awaiting_connect)
