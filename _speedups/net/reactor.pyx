"""The sockets of a node: one epoll set, which is served turn by turn.

Sockets and clock are used in this package only: at a microsecond a message, a Python call per read and per write
would cost most. A turn calls epoll once, reads each readable connection once into one shared buffer, and lets its
channel handle the packets. Then `Turn.end` stores and writes. An idle connection owns no buffer, and its timer is an
entry in a wheel that moves about once per keep-alive period. A driver runs the turns within the node's event loop.

Connections without CONNACK are in a second epoll set. A turn serves only some of them, which bounds the delay
that a storm of new clients, or of TLS handshakes, causes to the others.

The handler has the methods that channel.pyx calls, and three more: `ended(connection, reason)`, called once for each
connection, `failed(connection, exception)` and `accepting(bool)`.
"""

from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from ..base.buffers cimport buffer_append, buffer_free, buffer_reserve, buffer_size
from ..base.timer_wheel cimport Timer, wheel_pop
from .connection cimport connection_of
from .loop cimport READ_MAX, TAIL_MAX
from .posix cimport (
    EPOLL_CTL_DEL, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, MSG_DONTWAIT,
    PR_SET_TIMERSLACK, epoll_ctl, epoll_event, epoll_wait, mallopt, now, prctl, recv,
)
from .preamble cimport after_frames, read_preamble, upgrade_websocket
from .wakeup cimport coalesce_wakeups, note_turn
from ..protocol.channel cimport OPEN
from ..protocol.read_gate cimport OUTPUT_FULL, PARSE_GATE
from ..routing.router cimport Router
from ..session.counters cimport BYTES_RECEIVED, PACKETS_RECEIVED, READ_PAUSES
from ..session.turn cimport Outlet

from functools import partial

from ..protocol import close_reasons


cdef class Reactor(Acceptor):
    """The sockets of a node.

    Args:
        router: the node's router.
        handler: see the head of this file and of channel.pyx.
        driver: runs the turns in the event loop (broker/core/driver.py).
    """

    def __init__(self, Router router not None, handler, driver):
        Acceptor.__init__(self, router, handler)
        self.driver = driver
        self.readers = {}
        self.last = []
        self.loop_fd = self.alarm_fd = -1
        prctl(PR_SET_TIMERSLACK, 1)                # a wait of 50 us must not take 100
        mallopt(M_MMAP_THRESHOLD, KEPT_MAX)        # a turn's batches are short-lived: getting their pages from the
        mallopt(M_TRIM_THRESHOLD, KEPT_MAX)        # kernel each time costs more than filling them
        self.watch(self.pending_epoll)

    # ---- life ----

    def start(self):
        """Serve the connections from now on."""
        if not self.is_served:
            self.is_served = True
            for fd in self.readers:
                self.driver.remove_reader(fd)
                self.watch(fd)
        self.driver.start(self)

    def stop(self):
        """Serve the connections no more, until `start`. Descriptors of `add_reader` are served all the same."""
        self.driver.stop(self)
        if self.is_served:
            self.is_served = False
            for fd, callback in self.readers.items():
                epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, NULL)
                self.driver.add_reader(fd, partial(self.read, callback))

    def add_reader(self, int fd, callback not None):
        """Call `callback()` in each turn with this descriptor readable; it returns the number of publications."""
        self.readers[fd] = callback
        if self.is_served:
            self.watch(fd)
        else:
            self.driver.add_reader(fd, partial(self.read, callback))

    def remove_reader(self, int fd):
        """Undo `add_reader`; to be called before the descriptor is closed."""
        del self.readers[fd]
        if self.is_served:
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, NULL)
        else:
            self.driver.remove_reader(fd)

    def read(self, callback):
        """A turn without the clients, while they are not served."""
        self.in_turn = True
        try:
            callback()
            self.end_turn()
        finally:
            self.in_turn = False

    cdef int watch_loop(self, int fd, int alarm) except -1:
        """End a wait for input also when the event loop has something to do.

        fd, alarm: a descriptor of the loop, and one that becomes ready when a timer is due; both -1 = no more.
        """
        if self.loop_fd >= 0:
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, self.loop_fd, NULL)
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, self.alarm_fd, NULL)
        self.loop_fd, self.alarm_fd = fd, alarm
        if fd >= 0:
            self.watch(fd)
            self.watch(alarm, EPOLLET)
        return 0

    cdef bint is_loops(self, uint64_t tag) noexcept:
        """Whether an event is one of the event loop."""
        return tag & 1 and (<int>(tag >> 1) == self.loop_fd or <int>(tag >> 1) == self.alarm_fd)

    # ---- a turn ----

    def attach_lease(self, on_lease_expired not None):
        """Call this, and serve nobody, in turns after the lease has expired."""
        self.on_lease_expired = on_lease_expired

    def set_lease(self, double seconds):
        """Set the time after which no client is served and `on_lease_expired` is called; 0 = no deadline."""
        self.lease_deadline = now() + <int64_t>(seconds * 1e9) if seconds else 0

    def run(self):
        """Run one turn: read and handle all that is readable now, then end the turn."""
        self.take_turn(0)

    cdef bint take_turn(self, int timeout) except -1:
        """Run one turn. Returns whether the event loop has something to do.

        timeout: milliseconds to wait for input, if no turn was requested; -1 = until it comes.
        """
        cdef epoll_event events[EVENTS_MAX]
        cdef int count, i
        cdef uint64_t tag
        cdef bint pending = False, loop_ready = False
        cdef uint64_t publications = 0
        cdef uint64_t packets_before = self.turn.counters[PACKETS_RECEIVED]
        if self.soon:
            timeout = 0
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS_MAX, timeout)
        if not self.soon and (count <= 0 or (count == 1 and self.is_loops(events[0].data.u64))):
            return count > 0
        if self.lease_deadline and now() > self.lease_deadline:
            self.on_lease_expired()
            for i in range(count if self.is_served else 0):    # without Redis the node waits for it, not for clients
                tag = events[i].data.u64
                if tag & 1 and <int>(tag >> 1) in self.readers:
                    self.read(self.readers[<int>(tag >> 1)])
            return True
        if coalesce_wakeups(&self.wakeup, self.soon):
            with nogil:
                count = epoll_wait(self.epoll, events, EVENTS_MAX, 0)
        self.soon = False
        self.in_turn = True
        try:
            for i in range(count):
                tag = events[i].data.u64
                if tag & 1:                        # odd: not the address of a Connection, but a file descriptor
                    if <int>(tag >> 1) == self.pending_epoll:
                        pending = True
                    elif self.is_loops(tag):
                        loop_ready = True
                    elif <int>(tag >> 1) in self.readers:
                        publications += self.readers[<int>(tag >> 1)]()
                    elif <int>(tag >> 1) in self.endpoints:
                        self.accept(<int>(tag >> 1))
                    continue
                self.serve(<Connection><void*><uintptr_t>tag, events[i].events)
            if pending:
                self.serve_pending()
            if self.read_again:
                self.serve_read_again()
            self.end_turn()
        finally:
            self.in_turn = False
        note_turn(&self.wakeup, self.turn.counters[PACKETS_RECEIVED] - packets_before + publications)
        return loop_ready

    cpdef int end_turn(self) except -1:
        """End a turn: end connections that are to be closed, store, write. To be called after changes outside `run`."""
        cdef bint within = self.in_turn
        self.in_turn = True
        try:
            self.close_pending()
            if self.heirs:
                self.call_heirs()
            again = self.turn.end()
            self.close_pending()
            if self.last:
                self.flush_last()
        finally:
            self.in_turn = within
        if (again or self.turn.unflushed.count or self.turn.to_send.count or self.read_again or self.heirs) and (
                not self.soon):
            self.soon = True
            self.driver.wake(self)
        if self.closed_this_turn:
            self.closed_this_turn.clear()
        return 0

    cdef int call_heirs(self) except -1:
        """Connections have given way: the connections that waited go on."""
        heirs, self.heirs = self.heirs, []
        for heir in heirs:
            heir()
        return 0

    cdef int flush_last(self) except -1:
        outlets, self.last = self.last, None
        for outlet in outlets:
            (<Outlet>outlet).flush()
        self.last = []
        return 0

    cdef int serve_pending(self) except -1:
        """Serve some of the connections without CONNACK.

        The remaining ones are still ready in the next turn, and are served before the others.
        """
        cdef epoll_event events[PENDING_MAX]
        cdef int64_t began = now()
        cdef int count, i
        with nogil:
            count = epoll_wait(self.pending_epoll, events, PENDING_MAX, 0)
        for i in range(count):
            self.serve(<Connection><void*><uintptr_t>events[i].data.u64, events[i].events)
            if now() - began > PENDING_TIME:
                break
        return 0

    cdef int serve_read_again(self) except -1:
        """Serve the connections whose layers have read ahead: epoll does not report them."""
        cdef Connection c
        connections, self.read_again = self.read_again, []
        for c in connections:
            c.reads_again = False
            if c.giving_way is None:
                self.serve(c, c.interest & EPOLLIN)
            elif not c.closed and not c.gate & PARSE_GATE:
                self.serve(c, EPOLLIN)
                if not c.closed:
                    c.go_on_giving_way()
        return 0

    cdef int serve(self, Connection c, uint32_t events) except -1:
        """Read, write or close, as the events of epoll allow."""
        if c.closed:
            return 0
        try:
            if events & EPOLLOUT:
                c.flush()
                if c.tls_wants_write and not c.closed:
                    c.tls_wants_write = False
                    if not c.blocked:
                        c.set_interest(c.interest & ~EPOLLOUT)
                    c.update_interest()
                    events |= EPOLLIN
            if events & (EPOLLIN | EPOLLERR | EPOLLHUP) and not c.closed:
                self.readable(c)
        except Exception as error:                    # a fault of the broker: the other connections are still served
            self.handler.failed(c, error)
            c.close_soon(close_reasons.INTERNAL_ERROR)
        return 0

    cdef int readable(self, Connection c) except -1:
        """Read once from the connection's socket, through its layers, and handle the bytes."""
        cdef Py_ssize_t have, room
        cdef uint8_t* p
        cdef ssize_t got
        cdef bint upgrading, direct
        if c.in_preamble and not read_preamble(c):
            return 0
        have = buffer_size(&c.incoming)
        upgrading = c.websocket is not None and not c.websocket.ready
        direct = (have > TAIL_MAX or c.need > READ_MAX) and not upgrading
        if buffer_size(&c.out) > self.turn.limits.max_outgoing_bytes:
            # Its output buffer is full: stop reading until it drains.
            c.close_gate(OUTPUT_FULL)
            self.turn.counters[READ_PAUSES] += 1
            return c.update_interest()
        if direct:
            # A large packet is read into its own buffer, which grows with the bytes received, never ahead of them.
            room = <Py_ssize_t>c.need - have
            room = min(room, max(have, TAIL_MAX * 16), DIRECT_MAX) if room > 0 else TAIL_MAX
            p = buffer_reserve(&c.incoming, &self.turn.pool, room)
            if p == NULL:
                return c.close_soon(close_reasons.OUT_OF_MEMORY)
        else:
            p = self.shared + have
            room = READ_MAX + TAIL_MAX - have
            if c.metered:
                room = min(room, READ_METERED)
        got = recv(c.fd, p, room, MSG_DONTWAIT) if c.tls is None else c.tls.read(p, room)
        if got <= 0:
            c.on_read_error(got)
            return 0
        self.turn.counters[BYTES_RECEIVED] += got
        c.endpoint.listener.bytes_received += got
        if c.tls is not None and c.tls.more:
            c.queue_read_again()
        if c.lingering:
            return 0
        if c.websocket is not None and not upgrading:
            got = c.websocket.decode(p, got)
        if got:                                    # frames without payload don't extend keep alive [MQTT-3.1.2-24]
            c.last_seen = self.turn.tick
        if direct:
            c.incoming.end += got
            if have + got >= <Py_ssize_t>c.need:
                c.handle_pending()
        else:
            if have:
                memcpy(self.shared, c.incoming.data + c.incoming.start, have)
                buffer_free(&c.incoming, &self.turn.pool)
            self.process_input(c, have + got)
        if c.websocket is not None:
            after_frames(c)
        if c.fault is not None or c.gate & PARSE_GATE:
            c.update_interest()
        return 0

    cdef int process_input(self, Connection c, Py_ssize_t n) except -1:
        """Handle the first `n` bytes of the shared buffer; the connection keeps an incomplete packet."""
        cdef Py_ssize_t used = 0
        if c.websocket is not None and not c.websocket.ready:
            used = upgrade_websocket(c, n)
            if used:                               # bytes right after the request are frames
                n = used + c.websocket.decode(self.shared + used, n - used)
        if c.websocket is None or c.websocket.ready:
            used += c.feed(self.shared + used, n - used)
            c.connect_received()
        if used < n and not c.closed and buffer_append(&c.incoming, &self.turn.pool, self.shared + used, n - used) < 0:
            return c.close_soon(close_reasons.OUT_OF_MEMORY)
        return 0

    cdef int close_pending(self) except -1:
        """End the connections of `to_close`."""
        cdef Py_ssize_t i = 0
        cdef Connection c
        while i < self.to_close.count:             # ending one may add others
            c = <Connection>self.to_close.items[i]
            if buffer_size(&c.out) or (c.websocket is not None and c.websocket.owes()):
                c.flush()                          # replies to packets before the fault
            c.end(c.reason)
            Py_DECREF(c)
            i += 1
        self.to_close.count = 0
        return 0

    # ---- time ----

    def advance(self, uint32_t ticks, int64_t missed=0):
        """Advance by `ticks` quarters of a second: check the connections whose timers have expired.

        `missed`: further quarters in which the process was suspended; they count for expiry, not for timeouts.
        """
        cdef Timer* timer
        self.turn.advance(ticks, missed)
        while True:
            timer = wheel_pop(&self.wheel, self.turn.tick)
            if timer == NULL:
                break
            connection_of(timer).check_timeout()
        if self.paused and self.turn.tick - self.paused_at >= PAUSE_TICKS:
            self.resume_accepting()
        self.resume_rate_limited()
        if self.departing:
            self.close_departing()
        self.turn.seal()                           # records without waiters
        self.end_turn()

    cdef int resume_rate_limited(self) except -1:
        """Resume reading from connections whose rates allow it again, the longest waiting first."""
        cdef Connection c
        cdef list waiting = []
        connections, self.rate_limited = self.rate_limited, []
        for c in connections:
            if c.closed or c.phase != OPEN:
                continue
            if c.within_rate():
                c.resume_rate_limited()
            else:
                waiting.append(c)
        self.rate_limited = waiting + self.rate_limited
        return 0

    def apply_rate_limits(self):
        """Apply changed rates and packet sizes of listeners to all connections."""
        cdef Connection c
        for c in self:
            c.meter()
