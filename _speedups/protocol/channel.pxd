# The MQTT protocol of one connection, without the socket. See channel.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from ..base.flag cimport flag
from ..routing.router cimport Router
from ..session.message cimport Publication
from ..session.session cimport Session
from ..session.turn cimport Outlet
from .client_aliases cimport ClientAlias
from .incoming_publish cimport Incoming

cdef enum Phase:
    EXPECTING = 0              # no CONNECT yet
    CONNECTING = 1             # CONNECT is being processed; nothing is parsed until then
    AUTHENTICATING = 2         # of the client's next packets only AUTH and DISCONNECT are parsed
    OPEN = 3
    ENDED = 4                  # further input is ignored


cdef class Channel(Outlet):
    cdef Router router
    cdef object handler                # the node's; gets the packets that are not hot
    cdef readonly Session session      # None before CONNECT is accepted
    cdef public Session claimed        # for the handler: the session, also while CONNECT waits for the store
    cdef public object identity        # for the handler: the identity of the authenticated client
    cdef public object connect         # for the handler: the CONNECT packet, while it is needed
    cdef public object connect_properties  # of CONNECT, while hooks may ask for them, or None
    cdef public object authentication  # for the handler: the method and the steps of the authentication, or None
    cdef readonly object fault         # the CloseReason for which the connection must end, or None
    cdef ClientAlias* client_aliases   # that the client has set, from 1 on; NULL until it sets the first
    cdef uint8_t phase
    cdef readonly uint8_t maximum_qos            # of messages from the client
    cdef uint8_t refused_flags         # of the first byte of PUBLISH: FLAG_RETAIN if retained messages are refused
    cdef flag handing_up               # the handler is being called
    cdef readonly flag bridge          # the client is a bridge
    cdef flag link                     # the client is a link of this node
    cdef flag metered                  # its packets are rate limited
    cdef uint8_t gate                  # reasons not to read: bits of read_gate.pxd
    cdef uint32_t own_max_packet_size  # bytes of the largest packet from the client, beside the limit of the turn
    # CONNACK has promised the client at least these, whatever the limits of the turn are by now: bytes of its largest
    # packet, messages without an acknowledgement, topic aliases; 0 below level 5.
    cdef uint32_t promised_packet_size
    cdef uint16_t promised_receive_maximum
    cdef uint16_t promised_aliases
    cdef uint32_t need                 # bytes of the incomplete packet; 0 = unknown or none
    cdef uint32_t last_seen            # tick of the last bytes received
    cdef uint32_t keep_alive_ticks     # ticks without bytes until the client times out; 0 = never

    cdef int close_gate(self, uint8_t reason) noexcept
    cdef bint lift(self, uint8_t reasons) noexcept
    cdef int open_gate(self, uint8_t reason) except -1
    cdef int gate_opened(self) except -1
    cdef Py_ssize_t feed(self, const uint8_t* data, Py_ssize_t n) except -1
    cdef int protocol_error(self, object reason) except -1
    cdef int meter(self) except -1
    cdef int charge(self, bint is_publish, Py_ssize_t size) except -1
    cdef bint begins_level_5(self, const uint8_t* body, Py_ssize_t n) noexcept
    cdef int handle_packet(self, uint8_t first_byte, const uint8_t* packet, const uint8_t* body, Py_ssize_t n) except -1
    cdef bint waits_for_shard(self, uint64_t shards) except -1
    cdef int handle_publish(self, uint8_t first_byte, const uint8_t* packet, const uint8_t* body,
                            Py_ssize_t n) except -1
    cdef int refuse_kind(self, uint8_t qos) except -1
    cdef int take_properties(self, Incoming* incoming, uint8_t first_byte, const uint8_t* packet) except -1
    cdef int publish_error(self, const Incoming* incoming, int fault) except -1
    cdef uint32_t max_alias(self) noexcept
    cdef int qualify(self, Publication* publication) except -1
    cdef int refuse_name(self, const Incoming* incoming, int fault) except -1
    cdef bint rename(self, Publication* publication, const uint8_t* name, Py_ssize_t length, bytes topic) except -1
    cdef bint within_receive_maximum(self) except -1
    cdef int note_denial(self, const Publication* publication) except -1
    cdef bint is_undecided(self, const Publication* publication, const uint8_t* name, Py_ssize_t n) except -1
    cdef int hand_to_hooks(self, const Incoming* incoming) except -1
    cdef int handle_acknowledgement(self, uint8_t first_byte, const uint8_t* body, Py_ssize_t n) except -1
    cdef bint check_properties(self, const uint8_t* p, const uint8_t* end, int kind) except -1
    cdef int dispatch(self, uint8_t first_byte, const uint8_t* body, Py_ssize_t n) except -1
