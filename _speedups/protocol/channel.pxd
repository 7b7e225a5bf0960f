# The MQTT protocol of one connection, without the socket. See channel.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t

from _speedups.routing.router cimport Router
from _speedups.session.session cimport Session
from _speedups.session.turn cimport Outlet

cdef enum Phase:
    EXPECTING = 0              # no CONNECT yet
    CONNECTING = 1             # CONNECT is being processed; nothing is parsed meanwhile
    OPEN = 2
    ENDED = 3                  # further input is ignored


cdef class Channel(Outlet):
    cdef Router router
    cdef object handler                # the node's; gets the packets that are not hot
    cdef readonly Session session      # None before CONNECT is accepted
    cdef public Session claimed        # for the handler: the session, also while CONNECT waits for the store
    cdef public object identity        # for the handler: the identity of the authenticated client
    cdef public object connect         # for the handler: the CONNECT packet, while it is needed
    cdef readonly str fault            # why the connection must end, or None
    cdef uint8_t phase
    cdef bint handing_up               # the handler is being called
    cdef bint metered                  # its packets are rate limited
    cdef uint8_t gate                  # reasons not to read: bits of read_gate.pxd
    cdef uint32_t need                 # bytes of the incomplete packet; 0 = unknown or none
    cdef uint32_t last_seen            # tick of the last bytes received
    cdef uint32_t keep_alive_ticks     # ticks without bytes until the client times out; 0 = never

    cdef int close_gate(self, uint8_t reason) noexcept
    cdef int open_gate(self, uint8_t reason) except -1
    cdef int gate_opened(self) except -1
    cdef Py_ssize_t feed(self, const uint8_t* data, Py_ssize_t n) except -1
    cdef int protocol_error(self, str reason) except -1
    cdef int charge(self, bint is_publish, Py_ssize_t size) except -1
    cdef int handle_packet(self, uint8_t first_byte, const uint8_t* packet, const uint8_t* body, Py_ssize_t n) except -1
    cdef int handle_publish(self, uint8_t first_byte, const uint8_t* packet, const uint8_t* body, Py_ssize_t n) except -1
    cdef int accept_publish(self, uint8_t first_byte, const uint8_t* packet, Py_ssize_t header, const uint8_t* topic,
                            Py_ssize_t topic_length, const uint8_t* payload, Py_ssize_t size,
                            uint16_t packet_id) except -1
    cdef int acknowledge_and_drop(self, uint8_t qos, uint16_t packet_id, const uint8_t* topic, Py_ssize_t topic_length,
                             const uint8_t* payload, Py_ssize_t size, str reason) except -1
    cdef int handle_acknowledgement(self, uint8_t first_byte, const uint8_t* body, Py_ssize_t n) except -1
    cdef int handle_pubrel(self, uint16_t packet_id) except -1
    cdef int dispatch(self, uint8_t first_byte, const uint8_t* body, Py_ssize_t n) except -1
