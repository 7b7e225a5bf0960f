# One connection's protocol life, without the socket. See channel.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t

from _speedups.routing.router cimport Router
from _speedups.session.session cimport Session
from _speedups.session.turn cimport Outlet

cdef enum Phase:
    EXPECTING = 0              # no CONNECT yet
    CONNECTING = 1             # CONNECT is being decided; nothing is parsed meanwhile
    OPEN = 2
    ENDED = 3                  # what still arrives is ignored


cdef class Channel(Outlet):
    cdef Router router
    cdef object handler                # of the node: gets what is not hot
    cdef readonly Session session      # None before CONNECT is accepted
    cdef public Session claimed        # for the handler: its session, also while CONNECT waits for the store
    cdef public object identity        # for the handler: who the client was found to be
    cdef public object connect         # for the handler: the CONNECT packet, while it matters
    cdef readonly str fault            # why the connection must end, or None
    cdef uint8_t phase
    cdef bint handing_up               # the handler is being called
    cdef bint metered                  # its packets count against a rate
    cdef uint8_t gate                  # why it is not read: bits of read_gate.pxd
    cdef uint32_t need                 # bytes of the packet that is incomplete; 0 = not known or none
    cdef uint32_t last_seen            # tick of the last bytes received
    cdef uint32_t keep_alive_ticks             # ticks without bytes until the client counts as gone; 0 = for ever

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
