# The sockets: one epoll set inside the loop's own. See reactor.pyx.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from _speedups.base.buffers cimport Buffer, Pointers
from _speedups.protocol.channel cimport Channel
from _speedups.net.listener cimport Endpoint
from _speedups.base.rate_limit cimport Meter
from _speedups.routing.router cimport Router
from _speedups.net.tls cimport Tls
from _speedups.session.turn cimport Turn
from _speedups.net.websocket cimport WebSocket

cdef enum:
    READ_MOST = 262144         # bytes read from one connection in one turn
    TAIL_MOST = 4096           # an incomplete packet up to this size is copied to the front of the shared buffer
    REQUEST_MOST = 8192        # bytes of the HTTP request that a WebSocket begins with
    DIRECT_MOST = 1048576      # bytes read at once into a large packet's own buffer
    KEPT_MOST = 16777216       # bytes that are free and still kept from the kernel
    NEWCOMERS_MOST = 64        # connections served in one turn that have not been let in ...
    NEWCOMERS_TIME = 1000000   # ... and ns after which the next one waits for the next turn
    READ_METERED = 16384       # bytes read at once of a client that has to keep to a rate
    EVENTS_MOST = 512          # connections served in one turn
    ACCEPTS_MOST = 128         # connections accepted from one listener in one turn
    WHEEL_SLOTS = 512          # ticks that the timer wheel spans
    NAP = 50000                # ns
    NAP_IDLE = 25000           # ns: only when turns follow each other faster
    NAP_CROWD = 1000            # packets in the last turn from which on none is needed
    NAP_WORTH = 2              # times as many packets as without: what makes naps worth while
    NAP_PROBE = 32             # turns after which what is not done now is tried again
    PATIENCE_TICKS = 8         # how long CONNECT may take when others wait for a place
    PAUSE_TICKS = 4            # until accepting is tried again
    LINGER_TICKS = 8           # how long a refused client may take to read why


cdef class Connection(Channel):
    # What every flush looks at stands together: a thousand receivers are a thousand times as many lines of cache.
    cdef int fd                        # -1 when closed
    cdef uint32_t interest             # epoll events asked for
    cdef readonly Endpoint entrance    # by which it came
    cdef Tls tls                       # None: in plain text
    cdef WebSocket websocket           # None: no frames
    cdef bint throttled                # not read until the client has read what waits for it
    cdef readonly bint lingering       # all is said; waits for the client to close
    cdef Reactor reactor
    cdef Buffer incoming               # bytes of an incomplete packet, or that may not be parsed yet
    cdef void* wheel_next              # Connections in the same slot of the wheel, not owned
    cdef void* wheel_previous
    cdef int slot                      # of the wheel, -1 = in none
    cdef uint32_t due                  # tick at which it is looked at
    cdef bint expected                 # counts among those that have not sent CONNECT
    cdef public bint unsettled         # its end would tell the client what is not stored yet: it is to be a reset
    cdef str reason                    # of the end
    cdef uint8_t peer[28]              # struct sockaddr_in or sockaddr_in6, or only the family
    cdef readonly str certificate      # subject of the certificate that the client showed, as configured, or None
    cdef bint opening                  # something comes before the first byte of MQTT or HTTP:
    cdef bint at_door                  # in the epoll set of those that have not been let in
    cdef bint slowed                   # not read until its rate allows it again
    cdef bint counted                  # among the connections of its address
    cdef Meter messages, volume        # what it used of its rates
    cdef bint proxied                  # ... a PROXY protocol header; and then TLS, if the entrance wants it
    cdef bint turned                   # TLS can't read on before it has written
    cdef bint hungry                   # is in reactor.hungry

    cdef bint transmit(self) except -1
    cdef Py_ssize_t push(self, const uint8_t* p, Py_ssize_t size) except -4
    cdef Py_ssize_t push_frame(self, const uint8_t* p, Py_ssize_t size) except -4
    cdef int farewell(self) except -1
    cdef int move(self, int family, bytes address, int port) except -1
    cdef int ask(self, uint32_t interest) except -1
    cdef int come_in(self) except -1
    cdef bytes origin(self)
    cdef bint may_go_on(self) noexcept
    cdef int slow_down(self) except -1
    cdef int parse(self) except -1
    cdef int check(self) except -1
    cdef void heard_connect(self) noexcept
    cdef int end(self, str reason) except -1


cdef class Reactor:
    cdef readonly Turn turn
    cdef Router router
    cdef object handler
    cdef int epoll
    cdef int door                      # an epoll set in that one: connections that have not been let in
    cdef uint8_t* shared               # what every connection reads into
    cdef uint8_t* record               # where head and payload of a frame are put together for TLS
    cdef dict connections              # fd -> Connection: owns them
    cdef list slowed                   # Connections that are
    cdef dict addresses                # of clients -> connections, where a listener counts them
    cdef dict expected                 # those that have not sent CONNECT, oldest first
    cdef dict entrances                # fd -> Endpoint
    cdef readonly dict listeners       # name -> Listener, of the entrances that are or were there
    cdef list hungry                   # Connections that have read more from their sockets than they have taken
    cdef set paused                    # fds of listeners that are not asked for new connections
    cdef uint32_t paused_at            # tick
    cdef bint starved                  # the handler was told that nobody is accepted
    cdef Pointers doomed               # Connections to be ended at the end of the turn (owned references)
    cdef list buried                   # Connections that ended in this turn; events may still name them
    cdef void* wheel[WHEEL_SLOTS]      # first Connection of each slot
    cdef uint32_t wheeled              # the tick up to which the wheel has been turned
    cdef int64_t left                  # when the last turn ended, ns
    cdef int64_t idle                  # smoothed time between turns, ns
    cdef uint64_t crowd                # packets in the last turn
    cdef uint32_t busy_turns           # turns that followed each other fast
    cdef double after_nap              # smoothed packets of a turn after a nap ...
    cdef double after_none             # ... and of one without
    cdef int64_t valid_until           # after this nobody is served, ns; 0 = always
    cdef public object overdue         # callable: called instead
    cdef bint soon                     # another turn has been asked for
    cdef object wake                   # callable: call `run` soon
    cdef public uint32_t max_connections
    cdef public uint32_t max_pending
    cdef public uint32_t connect_ticks
    cdef public uint32_t retry_ticks

    cdef object watch(self, int fd)
    cdef int pause(self, int fd, bint starved) except -1
    cdef int unpause(self) except -1
    cdef bint nap(self) noexcept
    cdef bint has_room(self) except -1
    cdef int accept(self, int listener) except -1
    cdef Connection open(self, int fd, const uint8_t* peer, uint32_t size, Endpoint entrance)
    cdef int serve(self, Connection c, uint32_t events) except -1
    cdef int let_in(self) except -1
    cdef bint count_in(self, Connection c) except -1
    cdef int count_out(self, Connection c) except -1
    cdef int hurry(self) except -1
    cdef int readable(self, Connection c) except -1
    cdef int take_in(self, Connection c, Py_ssize_t n) except -1
    cdef bint prepare(self, Connection c) except -1
    cdef bint unwrap(self, Connection c) except -1
    cdef bint handshake(self, Connection c) except -1
    cdef Py_ssize_t upgrade(self, Connection c, Py_ssize_t n) except -1
    cdef int consider(self, Connection c) except -1
    cdef bint unread(self, Connection c, Py_ssize_t result) except -1
    cdef int feel_hungry(self, Connection c) except -1
    cdef int doom(self, Connection c, str reason) except -1
    cdef int bury(self) except -1
    cdef int schedule(self, Connection c) except -1
    cdef int place(self, Connection c) except -1
    cdef int unschedule(self, Connection c) except -1
    cdef int inspect(self, Connection c) except -1
