"""One connection of a client: its socket, its layers, its timer, its rates.

Between socket and channel there may be layers: a PROXY protocol header, TLS (tls.pyx), HTTP and then frames
(websocket.pyx). preamble.pyx reads the bytes before the first byte of MQTT, reactor.pyx the rest.

A connection ends only between packets. `close_soon` records a fault that is found while other connections are served,
such as a failed write. The reactor then ends the connection at the end of the turn.
"""

from cpython.ref cimport Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport strerror

from ..base.buffers cimport buffer_free, buffer_size, pointers_push
from ..base.rate_limit cimport RateLimit
from ..base.timer_wheel cimport timer_start, timer_stop
from ..codec.packets cimport Connack, Disconnect
from ..codec.encode cimport encode
from ..codec.tables cimport (
    CODE_PACKETS, CODE_SERVER_SHUTTING_DOWN, CODE_SERVER_UNAVAILABLE, CODE_UNSPECIFIED, CONNACK, DISCONNECT,
)
from .address cimport address_origin, address_text
from .layers cimport push
from .listener cimport METERS, Listener
from .posix cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, SHUT_WR,
    SO_LINGER, SOL_SOCKET, close, epoll_ctl, epoll_event, linger, recv, send, setsockopt, shutdown,
)
from .tls cimport FAILED, WANTS_WRITE
from .websocket cimport NORMAL, PROTOCOL_ERROR
from ..protocol.channel cimport AUTHENTICATING, ENDED, EXPECTING, OPEN
from ..protocol.read_gate cimport (
    CLOSE_PENDING, CONNECT_PENDING, HANDLER_BUSY, OUTPUT_FULL, PARSE_GATE, RATE_LIMITED, STORE_BEHIND,
)
from ..session.counters cimport (
    BYTES_SENT, CONNECT_TIMEOUTS, CONNECTIONS_CLOSED, CONNECTIONS_REFUSED, KEEP_ALIVE_TIMEOUTS, THROTTLED,
)
from ..session.session cimport Session

from ..protocol import close_reasons

cdef enum:
    LINGER_TICKS = 8           # how long a refused client may take to read the refusal
    GIVE_WAY_TICKS = 120       # how long a connection that gives way may take to handle its packets

cdef Py_ssize_t TIMER_OFFSET           # of `timer` in a Connection


cdef class Connection(Channel):
    """A connection of a client."""

    def __cinit__(self):
        global TIMER_OFFSET
        self.fd = -1
        self.timer.slot = -1
        TIMER_OFFSET = <char*>&self.timer - <char*><void*>self

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        free(self.rates)
        if self.turn is not None:
            buffer_free(&self.incoming, &self.turn.pool)

    @property
    def listener(self):
        """The name of the listener."""
        return self.endpoint.listener.name

    @property
    def transport(self):
        """The transport: "mqtt" (plain TCP), "mqtts", "ws", "wss" or "unix"."""
        return self.endpoint.transport

    @property
    def secure(self):
        """Whether the connection is encrypted: TLS, with a finished handshake."""
        return self.tls is not None and self.tls.ready

    @property
    def reset_on_close(self):
        """Whether it ends with a reset, also if the node is killed: an orderly end would confirm unstored packets."""
        return self.resets

    @reset_on_close.setter
    def reset_on_close(self, bint wanted):
        cdef linger value = linger(wanted, 0)
        self.resets = wanted
        if not self.closed:
            setsockopt(self.fd, SOL_SOCKET, SO_LINGER, &value, sizeof(value))

    @property
    def server_name(self):
        """The name that the client has asked for in the TLS handshake, empty if none; None without TLS."""
        return self.tls.server_name() if self.tls is not None else None

    @property
    def address(self):
        """The client's address and port, as text; for a Unix socket, "unix:" and the client's user id."""
        return address_text(&self.peer)

    cdef int set_interest(self, uint32_t interest) except -1:
        """Request these events from epoll."""
        cdef epoll_event event
        if interest == self.interest or self.fd < 0:
            return 0
        event.events = interest
        event.data.u64 = <uint64_t><uintptr_t><void*>self
        if epoll_ctl(self.loop.pending_epoll if self.is_pending else self.loop.epoll,
                     EPOLL_CTL_MOD, self.fd, &event) < 0:
            return self.close_soon(close_reasons.EPOLL_FAILED)
        self.interest = interest
        return 0

    cdef int admitted(self) except -1:
        """CONNACK was sent: from now on each turn serves the connection, however many are pending."""
        cdef epoll_event event
        self.accepted_tick = self.turn.tick
        if not self.is_pending or self.fd < 0:
            return 0
        self.is_pending = False
        event.events = self.interest
        event.data.u64 = <uint64_t><uintptr_t><void*>self
        if (epoll_ctl(self.loop.pending_epoll, EPOLL_CTL_DEL, self.fd, NULL) < 0
                or epoll_ctl(self.loop.epoll, EPOLL_CTL_ADD, self.fd, &event) < 0):
            return self.close_soon(close_reasons.EPOLL_FAILED)
        return 0

    cdef bint count_address(self) except -1:
        """Count the connection among the connections of its address; False if there are too many: it is then
        refused."""
        cdef uint32_t limit = self.endpoint.listener.max_per_address
        cdef bytes origin = address_origin(&self.peer) if limit else b""
        if not origin:
            return True
        known = self.loop.addresses.get(origin, 0)
        if known >= limit:
            self.endpoint.listener.refused += 1
            self.turn.counters[CONNECTIONS_REFUSED] += 1
            self.protocol_error(close_reasons.TOO_MANY_FROM_ADDRESS)
            return False
        self.loop.addresses[origin] = known + 1
        self.counted = True
        return True

    cdef int uncount_address(self) except -1:
        if self.counted:
            self.counted = False
            origin = address_origin(&self.peer)
            self.loop.addresses[origin] -= 1
            if self.loop.addresses[origin] == 0:
                del self.loop.addresses[origin]
        return 0

    # ---- rates ----

    cdef int meter(self) except -1:
        """Limit its packets from now on as its listener and its tenant say: their size, and perhaps their rate."""
        self.own_max_packet_size = self.endpoint.listener.max_packet_size
        self.metered = self.endpoint.listener.metered() or (
            self.session is not None and self.session.tenant is not None and self.session.tenant.metered())
        if self.metered and self.rates == NULL:
            self.rates = <RateLimit*>calloc(METERS, sizeof(RateLimit))
            if self.rates == NULL:
                raise MemoryError
        return 0

    cdef int charge(self, bint is_publish, Py_ssize_t size) except -1:
        cdef Listener listener = self.endpoint.listener
        cdef uint32_t tick = self.turn.tick
        listener.charge(self.rates, is_publish, size, tick)
        if self.session is not None and self.session.tenant is not None:
            self.session.tenant.charge(is_publish, size, tick)
        return self.apply_rate_limit()

    cdef int apply_rate_limit(self) except -1:
        """Stop handling packets for now, if its rates are used up."""
        if self.metered and self.phase == OPEN and not self.gate & PARSE_GATE and not self.within_rate():
            self.close_gate(RATE_LIMITED)
            self.turn.counters[THROTTLED] += 1
            self.loop.rate_limited.append(self)
        return 0

    cdef int resume_rate_limited(self) except -1:
        """Resume handling packets: its rates allow them again."""
        try:
            return self.open_gate(RATE_LIMITED)    # may limit it again: it is then last in the list
        except Exception as error:                 # a fault of the broker: other connections continue
            self.handler.failed(self, error)
            return self.close_soon(close_reasons.INTERNAL_ERROR)

    cdef bint within_rate(self) noexcept:
        """Whether its rates and the rates of its listener and tenant allow a metered connection another packet."""
        cdef Listener listener = self.endpoint.listener
        cdef uint32_t tick = self.turn.tick
        return (listener.within_rate(self.rates, tick)
                and (self.session is None or self.session.tenant is None or self.session.tenant.within_rate(tick)))

    cdef int flush(self) except -1:
        """Send as much as the socket takes; epoll reports when it takes the rest."""
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
                    return self.close_soon(strerror(errno).decode())
                sent = 0
            self.turn.counters[BYTES_SENT] += sent
            self.endpoint.listener.bytes_sent += sent
            self.out.start += sent
            if sent < size:
                self.blocked = True
                return self.set_interest(self.interest | EPOLLOUT)
            size = 0
        buffer_free(&self.out, &self.turn.pool)
        if self.blocked:
            self.blocked = False
            if not self.tls_wants_write:
                self.set_interest(self.interest & ~EPOLLOUT)
        if self.gate & OUTPUT_FULL:
            self.lift(OUTPUT_FULL)
            self.update_interest()
        if self.lingering:
            self.send_close_notices()
            shutdown(self.fd, SHUT_WR)
        elif self.wants_room:
            self.wants_room = False
            self.drained()
        return 0

    cdef bint transmit(self) except -1:
        """Send through the layers as much as the socket takes; returns whether that was all."""
        cdef Py_ssize_t sent, size = buffer_size(&self.out)
        if self.tls is not None and not self.tls.ready:
            return False
        while size > 0 or (self.websocket is not None and self.websocket.owes()):
            if self.closed:
                return False
            sent = push(self.tls, self.websocket, self.fd, self.loop.record, self.out.data + self.out.start, size)
            if sent == WANTS_WRITE:
                self.blocked = True
                self.set_interest(self.interest | EPOLLOUT)
                return False
            if sent < 0:
                self.close_soon(strerror(errno).decode() if self.tls is None
                                else self.tls.fault if sent == FAILED else close_reasons.CLOSED_BY_CLIENT)
                return False
            self.turn.counters[BYTES_SENT] += sent
            self.endpoint.listener.bytes_sent += sent
            self.out.start += sent
            size -= sent
        return True

    cdef int send_close_notices(self) except -1:
        """Send the close notice of each layer, as far as there is room for it."""
        if self.websocket is not None and self.websocket.ready:
            self.websocket.close(NORMAL if self.fault is None or self.lingering else PROTOCOL_ERROR)
            self.transmit()
        if self.tls is not None and not self.blocked:
            self.tls.shutdown()
        return 0

    cdef int gate_opened(self) except -1:
        """Resume: check its rates, handle the packets that wait, then read its socket."""
        self.apply_rate_limit()
        return self.handle_pending()

    cdef int handle_pending(self) except -1:
        """Handle the packets received while the gate was closed, then read on."""
        cdef Py_ssize_t used
        if self.closed:
            return 0
        if buffer_size(&self.incoming):
            used = self.feed(self.incoming.data + self.incoming.start, buffer_size(&self.incoming))
            self.incoming.start += used
            if buffer_size(&self.incoming) == 0:
                buffer_free(&self.incoming, &self.turn.pool)
        return self.update_interest() if self.giving_way is None else self.go_on_giving_way()

    cdef int update_interest(self) except -1:
        """After packets were handled: end a connection with a fault, else read on only if the gate is open."""
        if self.fault is not None and not self.lingering:
            return self.close_soon(self.fault)
        if not self.gate & OUTPUT_FULL and (self.lingering or not self.gate & PARSE_GATE):
            if self.tls is not None and self.tls.more:
                self.queue_read_again()
            return self.set_interest(self.interest | EPOLLIN)
        return self.set_interest(self.interest & ~EPOLLIN)

    cdef int queue_read_again(self) except -1:
        """Read on in the next turn, even without an epoll event: a layer has read ahead."""
        if not self.reads_again:
            self.reads_again = True
            self.loop.read_again.append(self)
        return 0

    cdef bint on_read_error(self, Py_ssize_t result) except -1:
        """Handle a read without bytes: the client has closed, a fault, or a retry. Returns False."""
        if result == 0:
            self.close_soon(self.fault if self.lingering else close_reasons.CLOSED_BY_CLIENT)
        elif self.tls is None:
            if errno != EAGAIN and errno != EINTR:
                self.close_soon(strerror(errno).decode())
        elif result == WANTS_WRITE:
            self.tls_wants_write = True
            self.set_interest((self.interest | EPOLLOUT) & ~EPOLLIN)
        elif result == FAILED:
            self.close_soon(self.tls.fault)
        return False

    cdef int store_caught_up(self) except -1:
        if self.lift(STORE_BEHIND) and self.phase == OPEN and not self.closed:
            self.gate_opened()
        return 0

    def accept(self, Session session not None, int level, double keep_alive, terms not None):
        Channel.accept(self, session, level, keep_alive, terms)
        if self.giving_way is not None:
            self.receive_maximum = 0
        self.admitted()
        self.last_seen = self.turn.tick            # it may have waited for an earlier connection to end
        self.restart_timer()                       # its keep alive may expire before the CONNECT timeout does

    def proceed(self):
        """For the handler: resume; after `packet` or `publish` returned, packets that wait are handled too."""
        cdef bint was_busy = self.gate & HANDLER_BUSY
        self.lift(CONNECT_PENDING | HANDLER_BUSY)
        if self.handing_up or self.gate & RATE_LIMITED:
            return
        if self.turn.parts is not None:
            if was_busy and not self.gate & PARSE_GATE:
                self.waits_for_shard(self.turn.journal.touched)
        elif was_busy and not self.gate & PARSE_GATE and self.turn.overloaded():
            self.close_gate(STORE_BEHIND)          # the event it waited for may have added work for the store
            self.turn.await_store(self)
        self.gate_opened()

    def takes(self, bytes packet not None, reason not None):
        """Whether the client takes a packet of this size [5: MQTT-3.1.2-24]; if not, the connection ends."""
        if len(packet) <= self.maximum_packet_size:
            return True
        self.close(reason)
        return False

    def close(self, reason not None):
        """End the connection now; `ended` is called before this returns."""
        if not self.closed:
            self.flush()
            self.end(reason)

    def give_way(self, reason not None, then not None):
        """End the connection for another one of its client, after its packets that wait for the node were handled.

        Their client has sent them before it connected again: DISCONNECT among them discards its will.

        Args:
            reason: of the end.
            then: called at the end, with no arguments, unless the connection ends now.

        Returns:
            Whether it has ended now: no packet waits.
        """
        if not self.closed and self.giving_way is None:
            self.metered = False                   # packets that were read wait for no rate any more
            if self.gate & RATE_LIMITED:
                self.open_gate(RATE_LIMITED)
            if not self.closed:
                if not self.gate & PARSE_GATE or self.gate & CLOSE_PENDING or not self.has_arrivals():
                    self.close(reason)
                else:
                    self.giving_way, self.reads_last = [reason], True
                    self.receive_maximum = 0       # its session's messages are for the other connection now
                    self.set_interest(self.interest & ~EPOLLIN)
                    self.restart_timer()
        if self.closed:
            return True
        self.giving_way.append(then)
        return False

    def is_newer_than(self, Connection other not None):
        """Whether its CONNECT has arrived after the other one's."""
        return <int32_t>(self.connect_number - other.connect_number) > 0

    cdef bint has_arrivals(self) noexcept:
        """Whether bytes of the client have arrived, and were not handled yet."""
        cdef uint8_t byte
        return (buffer_size(&self.incoming) > 0 or (self.tls is not None and self.tls.more)
                or recv(self.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1)

    cdef int go_on_giving_way(self) except -1:
        """Packets were handled: read once more, since others may have arrived, and end."""
        if self.fault is not None or self.gate & PARSE_GATE:
            return self.update_interest()
        if self.reads_last:
            self.reads_last = False
            return self.queue_read_again()
        return self.close_soon(self.giving_way[0])

    def finish(self, reason not None):
        """End the connection when the client has read the output, or after LINGER_TICKS."""
        self.fault = reason
        self.phase = ENDED
        self.lingering = True
        self.close_gate(CLOSE_PENDING)
        if buffer_size(&self.out) == 0:
            self.send_close_notices()
            shutdown(self.fd, SHUT_WR)
        self.restart_timer()

    def authenticate(self):
        if self.closed:
            return
        if self.overdue:
            self.close_soon(close_reasons.AUTH_TIMEOUT)
            return
        Channel.authenticate(self)
        if not self.awaits_connect:                # it can be evicted again
            self.awaits_connect = True
            self.loop.awaiting_connect[self.fd] = self

    cdef void connect_received(self) noexcept:
        if self.awaits_connect and self.phase != EXPECTING and self.phase != AUTHENTICATING:
            self.awaits_connect = False
            self.loop.awaiting_connect.pop(self.fd, None)

    cdef bint send_reason(self, object reason) except -1:
        """Send a client of level 5 the reason of the end, if it is one for clients: in DISCONNECT, else in CONNACK."""
        cdef bytes packet
        code = getattr(reason, "code", None)
        if code is None or self.blocked or (self.tls is not None and not self.tls.ready):
            return False
        if self.session is None:
            packet = encode_reason(Connack, CONNACK, code, reason, self.largest)
        else:
            packet = encode_reason(Disconnect, DISCONNECT, code, reason, self.largest)
        if packet is None:
            return False
        self.send(packet)
        self.flush()
        return True

    cdef int end(self, object reason) except -1:
        cdef bint explained = False
        if self.closed:
            return 0
        if not self.resets and not self.lingering:
            explained = self.level == 5 and self.send_reason(reason)
            self.send_close_notices()
        self.closed = True
        self.phase = ENDED
        self.connect_received()
        self.reason = reason
        timer_stop(&self.loop.wheel, &self.timer)
        self.loop.connections[self.fd] = None
        self.loop.connection_count -= 1
        self.loop.closed_this_turn.append(self)
        if explained:
            self.loop.leave(self.fd, self.is_pending)
        else:
            close(self.fd)                         # also removes it from the epoll set
        self.fd = -1
        self.turn.counters[CONNECTIONS_CLOSED] += 1
        self.endpoint.listener.connections -= 1
        self.uncount_address()
        if self.giving_way is not None:
            self.loop.heirs += self.giving_way[1:]
            self.giving_way = None
        try:
            self.handler.ended(self, reason)
        except Exception as error:                 # other connections must still be ended
            self.handler.failed(self, error)
        return 0

    # ---- time ----

    cdef int restart_timer(self) except -1:
        """Schedule the next check for silence, at its earliest timeout; none without a timeout."""
        cdef uint32_t ticks
        timer_stop(&self.loop.wheel, &self.timer)
        if self.lingering:
            ticks = LINGER_TICKS
        elif self.giving_way is not None:
            ticks = GIVE_WAY_TICKS
        elif self.phase == OPEN:
            ticks = self.keep_alive_ticks
            if ticks:
                ticks -= min(ticks - 1, self.turn.tick - self.last_seen)
            if self.loop.retry_ticks and self.level == 3 and (ticks == 0 or self.loop.retry_ticks < ticks):
                ticks = self.loop.retry_ticks
            if ticks == 0:
                return 0
        else:
            ticks = max(1, self.loop.connect_ticks)
        timer_start(&self.loop.wheel, &self.timer, self.turn.tick + ticks)
        return 0

    cdef int check_timeout(self) except -1:
        """The timer has expired: end the connection if it was silent too long."""
        cdef uint8_t byte
        if self.lingering:
            return self.close_soon(self.fault)
        if self.giving_way is not None:
            return self.close_soon(self.giving_way[0])
        if self.phase == EXPECTING:
            self.turn.counters[CONNECT_TIMEOUTS] += 1
            return self.close_soon(close_reasons.CONNECT_TIMEOUT)
        if self.phase == AUTHENTICATING:
            self.turn.counters[CONNECT_TIMEOUTS] += 1
            return self.close_soon(close_reasons.AUTH_TIMEOUT)
        self.overdue = self.phase != OPEN
        if self.phase == OPEN:
            if self.keep_alive_ticks and self.turn.tick - self.last_seen >= self.keep_alive_ticks and (
                    recv(self.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 or self.gate & PARSE_GATE):
                # The broker did not read: the gate is closed, or the whole process was suspended.
                self.last_seen = self.turn.tick
            if self.keep_alive_ticks and self.turn.tick - self.last_seen >= self.keep_alive_ticks:
                self.turn.counters[KEEP_ALIVE_TIMEOUTS] += 1
                return self.close_soon(close_reasons.KEEP_ALIVE_TIMEOUT)
            if self.loop.retry_ticks and self.level == 3:
                self.session.resend_if_older(self.loop.retry_ticks)
        return self.restart_timer()

    cdef int close_soon(self, object reason) except -1:
        """End the connection at the end of the turn."""
        if self.reason is None:
            self.reason = reason
            Py_INCREF(self)
            if pointers_push(&self.loop.to_close, <void*>self) < 0:
                raise MemoryError
        self.phase = ENDED
        self.close_gate(CLOSE_PENDING)
        return 0


cdef bytes encode_reason(object packet, int packet_type, int code, object reason, uint32_t largest):
    """A CONNACK or DISCONNECT of level 5 with a reason code that it can carry, a reason string, other servers.

    Within `largest` bytes, 0 = any: without the reason string if need be [5: MQTT-3.2.2-19] [5: MQTT-3.14.2-3], then
    without other servers, else None.
    """
    cdef dict properties = {"reason_string": str(reason)}
    cdef bytes encoded
    if not CODE_PACKETS[code] >> packet_type & 1:
        # Before CONNACK a server that shuts down is one that is unavailable.
        code = CODE_SERVER_UNAVAILABLE if code == CODE_SERVER_SHUTTING_DOWN else CODE_UNSPECIFIED
    if reason.server_reference:
        properties["server_reference"] = reason.server_reference
    for name in ("reason_string", "server_reference"):
        encoded = encode(packet(reason_code=code, properties=properties), 5)
        if largest == 0 or len(encoded) <= <Py_ssize_t>largest:
            return encoded
        properties.pop(name, None)
    encoded = encode(packet(reason_code=code), 5)
    return encoded if len(encoded) <= <Py_ssize_t>largest else None


cdef Connection connection_of(Timer* timer):
    """The connection that owns this timer."""
    return <Connection><void*>(<char*>timer - TIMER_OFFSET)
