"""The MQTT protocol of one connection, without the socket: bytes in, packets handled, bytes out.

PUBLISH, its acknowledgements and PINGREQ never become Python objects; every other packet is decoded and handed to the
node's handler. Network input never raises: `fault` is set, further input is ignored, and the owner of the socket
closes it. It has no socket, no clock (the turn's tick is its time), and no configuration except the turn's limits.

The handler is any object with two methods. `packet(channel, packet)` handles CONNECT, SUBSCRIBE, UNSUBSCRIBE and
DISCONNECT. `denied(channel, topic)` is called at the client's first denied PUBLISH. With hooks for PUBLISH, also
`publish(channel, topic, payload, qos, retain, packet_id, dup)`, which calls `publish_as` or `drop_publish`.
"""

from _speedups.base.buffers cimport buffer_size
from _speedups.base.cursor cimport Cursor, read_header, varint_size
from _speedups.session.journal cimport BLOCK_MAX
from _speedups.session.message cimport (
    Message, Publication, message_new, message_payload, message_release, publication_of,
)
from _speedups.codec.decode cimport decode_body
from _speedups.codec.publish cimport FLAG_DUP, PUBLISH_QOS_0, is_sys
from _speedups.codec.tables cimport (CONNECT, PINGREQ, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBSCRIBE,
                                     UNSUBSCRIBE)
from _speedups.protocol.read_gate cimport CONNECT_PENDING, HANDLER_BUSY, PARSE_GATE, STORE_BEHIND
from _speedups.routing.router cimport Router
from _speedups.session.session cimport Session
from _speedups.codec.topics cimport fault_text
from _speedups.session.counters cimport (
    MALFORMED_PACKETS, PACKETS_RECEIVED, PACKETS_SENT, PUBLISH_BYTES_RECEIVED, PUBLISH_DENIED, PUBLISH_RECEIVED,
)
from _speedups.session.turn cimport Outlet

from _speedups.codec.errors import MalformedPacket, ProtocolError, UnacceptableProtocol
from _speedups.protocol import close_reasons

cdef enum:
    CONNECT_MAX = 327710      # bytes of the largest CONNECT: header and five fields of 65 535 bytes


cdef class Channel(Outlet):
    """The protocol of a connection.

    Args:
        router: the node's router.
        handler: gets the packets that are not hot.
    """

    def __init__(self, Router router not None, handler):
        self.router = router
        self.turn = router.turn
        self.handler = handler
        self.last_seen = self.turn.tick

    @property
    def protocol_level(self):
        """3 or 4; 0 before CONNECT."""
        return self.level

    def accept(self, Session session not None, int level, double keep_alive):
        """Accept CONNECT: packets are handled from now on, and the session's messages are sent.

        Args:
            session: the client's session.
            level: protocol level.
            keep_alive: seconds; 0 = the client never times out.
        """
        self.level = <uint8_t>level
        self.session = session
        self.phase = OPEN
        # One and a half times the period [MQTT-3.1.2-24], in ticks; a tick counts only when it is over.
        self.keep_alive_ticks = <uint32_t>(keep_alive * 6 + 1.999) if keep_alive else 0
        session.attach(self, level)

    def detach(self):
        """Detach from the session, which continues without this connection, or ends."""
        session, self.session = self.session, None
        if session is not None and session.outlet is self:
            session.detach()
        return session

    cdef int drained(self) except -1:
        if self.session is not None:
            self.turn.schedule_send(self.session)
        return 0

    cdef int protocol_error(self, str reason) except -1:
        """Note that the client violated the protocol: the connection must end."""
        if self.fault is None:
            self.fault = reason
            self.turn.counters[MALFORMED_PACKETS] += 1
        self.phase = ENDED
        return 0

    cdef int close_gate(self, uint8_t reason) noexcept:
        """Stop handling packets, or stop reading, for this reason."""
        self.gate |= reason
        return 0

    cdef int open_gate(self, uint8_t reason) except -1:
        """Remove the reason; if no reason against handling packets remains, resume."""
        self.gate &= ~reason
        return 0 if self.gate & PARSE_GATE else self.gate_opened()

    cdef int gate_opened(self) except -1:
        """Resume: the owner of the socket handles the packets received meanwhile, and reads on."""
        return 0

    cdef int charge(self, bint is_publish, Py_ssize_t size) except -1:
        """Charge a handled packet to the client's rates; a subclass with rates may delay the next packet."""
        return 0

    cdef Py_ssize_t feed(self, const uint8_t* data, Py_ssize_t n) except -1:
        """Handle the packets in `n` bytes; returns the bytes used. The caller passes the rest again, with more."""
        cdef const uint8_t* p = data
        cdef const uint8_t* end = data + n
        cdef const uint8_t* q
        cdef Cursor at
        cdef uint8_t first_byte = 0
        cdef uint32_t remaining = 0, limit
        cdef int found
        at.end = end
        self.need = 0
        while p < end and not self.gate & PARSE_GATE:
            if self.phase == ENDED:
                return n
            limit = self.turn.limits.max_packet_size
            if self.phase == EXPECTING:
                if p[0] >> 4 != CONNECT:
                    self.protocol_error(close_reasons.NOT_CONNECT)
                    return n
                if limit > CONNECT_MAX:
                    limit = CONNECT_MAX
            at.p = p
            found = read_header(&at, &first_byte, &remaining)
            if found == 0:
                break                                  # the header is incomplete
            if found < 0:
                self.protocol_error(close_reasons.REMAINING_LENGTH)
                return n
            q = at.p
            if remaining + (q - p) > limit:
                self.protocol_error(f"a packet of {remaining + (q - p)} bytes, {limit} are allowed")
                return n
            if end - q < <Py_ssize_t>remaining:
                self.need = remaining + <uint32_t>(q - p)
                break
            self.turn.counters[PACKETS_RECEIVED] += 1
            self.handle_packet(p[0], p, q, remaining)
            if self.metered:
                self.charge(p[0] >> 4 == PUBLISH, remaining + (q - p))
            p = q + remaining
        return n if self.phase == ENDED else p - data

    cdef int handle_packet(self, uint8_t first_byte, const uint8_t* packet, const uint8_t* body, Py_ssize_t n) except -1:
        """Handle one packet."""
        cdef int kind = first_byte >> 4
        cdef Py_ssize_t before = buffer_size(&self.turn.journal.records)
        cdef bint adds
        cdef uint8_t* p
        if kind == PUBLISH:
            self.handle_publish(first_byte, packet, body, n)
        elif PUBACK <= kind <= PUBCOMP:
            self.handle_acknowledgement(first_byte, body, n)
        elif kind == PINGREQ:
            if n or (self.level > 3 and first_byte & 15):
                return self.protocol_error(close_reasons.PINGREQ_FORM)
            p = self.reserve(2)
            p[0] = 0xD0
            p[1] = 0
            self.turn.counters[PACKETS_SENT] += 1
            return 0
        else:
            self.dispatch(first_byte, body, n)
        # If the store is behind, a client that adds work or memory to it is not read until it has caught up.
        adds = buffer_size(&self.turn.journal.records) > before or self.held > self.turn.committed
        if (adds or kind in (SUBSCRIBE, UNSUBSCRIBE)) and not self.gate & PARSE_GATE and self.turn.overloaded():
            self.close_gate(STORE_BEHIND)
            self.turn.await_store(self)
        elif adds and self.turn.journal.weight > BLOCK_MAX:
            self.turn.seal()
        return 0

    cdef int handle_publish(self, uint8_t first_byte, const uint8_t* packet, const uint8_t* body, Py_ssize_t n) except -1:
        cdef uint8_t qos = first_byte >> 1 & 3
        cdef const uint8_t* topic = body + 2
        cdef const uint8_t* payload
        cdef const uint8_t* end = body + n
        cdef Py_ssize_t topic_length
        cdef uint16_t packet_id = 0
        cdef int fault
        if qos == 3:
            return self.protocol_error(close_reasons.PUBLISH_QOS_3)
        if qos == 0 and first_byte & 8 and self.level > 3:
            return self.protocol_error(close_reasons.PUBLISH_DUP)
        if n < 2 + 2 * (qos > 0):
            return self.protocol_error(close_reasons.PUBLISH_SHORT)
        topic_length = body[0] << 8 | body[1]
        payload = topic + topic_length
        if payload + 2 * (qos > 0) > end:
            return self.protocol_error(close_reasons.PUBLISH_TOPIC_LENGTH)
        fault = self.router.check_topic(topic, topic_length, self.level)
        if fault:
            return self.protocol_error(f"PUBLISH: {fault_text(fault)}")
        if qos:
            packet_id = payload[0] << 8 | payload[1]
            if packet_id == 0:
                return self.protocol_error(close_reasons.PUBLISH_PACKET_ID)
            payload += 2
        self.turn.counters[PUBLISH_RECEIVED] += 1
        self.turn.counters[PUBLISH_BYTES_RECEIVED] += end - payload
        if self.turn.tracer is not None:
            self.turn.tracer.received(self, self.session.client_id, topic, topic_length, payload, end - payload, qos,
                                      packet_id, first_byte & 8 != 0)
        if is_sys(topic, topic_length):
            # Only the broker publishes there [MQTT-4.7.2-1]; at level 4 the only reply is an acknowledgement.
            return self.acknowledge_and_drop(qos, packet_id, topic, topic_length, payload, end - payload,
                                        "only the broker publishes there")
        if self.session.rights is not None and not self.router.may_publish(self.session.rights, topic, topic_length):
            self.turn.counters[PUBLISH_DENIED] += 1
            if self.session.rights.first_denial():
                self.handler.denied(self, topic[:topic_length])
            return self.acknowledge_and_drop(qos, packet_id, topic, topic_length, payload, end - payload,
                                        "the client may not publish there")
        if self.turn.has_publish_hook and not (qos == 2 and self.session.awaits(packet_id)):
            self.handler.publish(self, topic[:topic_length], payload[:end - payload], qos, first_byte & 1, packet_id,
                                 first_byte & 8)
            return 0
        return self.accept_publish(first_byte, packet, body - packet, topic, topic_length, payload, end - payload,
                                   packet_id)

    cdef int accept_publish(self, uint8_t first_byte, const uint8_t* packet, Py_ssize_t header, const uint8_t* topic,
                            Py_ssize_t topic_length, const uint8_t* payload, Py_ssize_t size,
                            uint16_t packet_id) except -1:
        """Publish a message that the client may publish, and acknowledge it.

        `packet` is the received PUBLISH, whose topic name was just checked, with a fixed header of `header` bytes; or
        NULL.
        """
        cdef uint8_t qos = first_byte >> 1 & 3
        cdef Publication publication = publication_of(topic, topic_length, payload, size, qos, first_byte & 1)
        cdef Py_ssize_t before
        cdef Message* message
        publication.publisher = <void*>self.session
        publication.dup = first_byte & FLAG_DUP
        publication.looked_up = packet != NULL
        if qos == 0:
            # Receivers get the received packet itself, if it has no flags and the shortest header.
            if first_byte != PUBLISH_QOS_0 or header != 1 + varint_size(<uint32_t>(2 + topic_length + size)):
                packet = NULL
            publication.packet = packet
            publication.packet_size = header + 2 + topic_length + size
            self.router.route(&publication)
            return 0
        if qos == 1:
            before = buffer_size(&self.turn.journal.records)
            self.router.route(&publication)
            return self.acknowledge(PUBACK << 4, packet_id, buffer_size(&self.turn.journal.records) > before)
        if self.session.awaits(packet_id):
            # A duplicate: PUBREC again, but not before the first one may be sent.
            return self.acknowledge(PUBREC << 4, packet_id, self.session.recorded() and self.turn.behind())
        if self.session.incoming.count >= self.turn.limits.max_awaiting_release or (
                self.session.incoming.count
                and self.session.incoming.bytes + topic_length + size > self.turn.limits.max_queued_bytes):
            return self.protocol_error(close_reasons.TOO_MANY_UNRELEASED)
        message = message_new(topic, topic_length, payload, size, 2, first_byte & 1)
        if message == NULL:
            raise MemoryError
        self.session.await_release(packet_id, message)
        return self.acknowledge(PUBREC << 4, packet_id, self.session.recorded())

    cdef int acknowledge_and_drop(self, uint8_t qos, uint16_t packet_id, const uint8_t* topic, Py_ssize_t topic_length,
                             const uint8_t* payload, Py_ssize_t size, str reason) except -1:
        """Acknowledge and drop a message: below level 5 there is no reason code for a refusal [MQTT-3.3.5-2]."""
        if self.turn.tracer is not None:
            self.turn.tracer.note("dropped", self.session.client_id, topic, topic_length, payload, size, qos, reason)
        if qos == 0:
            return 0
        return self.acknowledge((PUBACK if qos == 1 else PUBREC) << 4, packet_id, False)

    cdef int handle_acknowledgement(self, uint8_t first_byte, const uint8_t* body, Py_ssize_t n) except -1:
        cdef int kind = first_byte >> 4
        cdef uint16_t packet_id
        cdef bint fits = True
        if self.level > 3 and first_byte & 15 != (2 if kind == PUBREL else 0):
            return self.protocol_error(close_reasons.ACK_FLAGS)
        if n != 2:
            return self.protocol_error(close_reasons.ACK_SIZE)
        packet_id = body[0] << 8 | body[1]
        if packet_id == 0:
            return self.protocol_error(close_reasons.ACK_PACKET_ID)
        if kind == PUBACK:
            fits = self.session.puback(packet_id)
        elif kind == PUBREC:
            fits = self.session.pubrec(packet_id)
        elif kind == PUBCOMP:
            fits = self.session.pubcomp(packet_id)
        else:
            return self.handle_pubrel(packet_id)
        if not fits:
            return self.protocol_error(close_reasons.ACK_STATE)
        return 0

    cdef int handle_pubrel(self, uint16_t packet_id) except -1:
        """Make the message available, exactly once; PUBCOMP for an unknown identifier too [MQTT-4.3.3-2]."""
        cdef Py_ssize_t before = buffer_size(&self.turn.journal.records)
        cdef Message* message = self.session.release(packet_id)
        cdef Publication publication
        cdef bint wait
        if message != NULL:
            try:
                publication = publication_of(message.data, message.topic_length, message_payload(message),
                                             message.payload_length, 2, message.retain)
                publication.publisher = <void*>self.session
                publication.message = message
                self.router.route(&publication)
            finally:
                message_release(message)
            wait = buffer_size(&self.turn.journal.records) > before
        else:
            wait = self.session.recorded() and self.turn.behind()
        return self.acknowledge(PUBCOMP << 4, packet_id, wait)

    cdef int dispatch(self, uint8_t first_byte, const uint8_t* body, Py_ssize_t n) except -1:
        """Decode a packet that is not hot and pass it to the handler."""
        if self.phase == OPEN and first_byte >> 4 == CONNECT:
            return self.protocol_error(close_reasons.SECOND_CONNECT)
        try:
            packet = decode_body(first_byte, body, n, self.level or 4)
        except UnacceptableProtocol:
            packet = None
        except (MalformedPacket, ProtocolError) as fault:
            return self.protocol_error(str(fault))
        if self.phase == EXPECTING:
            self.phase = CONNECTING
            self.close_gate(CONNECT_PENDING)
        self.handing_up = True
        try:
            self.handler.packet(self, packet)
        finally:
            self.handing_up = False
        if self.phase == OPEN:
            self.gate &= ~CONNECT_PENDING
        return 0

    def pause(self):
        """For the handler: handle no more packets until the handler resumes the channel."""
        self.close_gate(HANDLER_BUSY)

    def publish_as(self, bytes topic not None, bytes payload not None, int qos, bint retain, int packet_id, bint dup):
        """For the handler: publish the message, perhaps changed, under a valid topic name, and acknowledge it."""
        self.accept_publish(<uint8_t>(0x30 | dup << 3 | qos << 1 | retain), NULL, 0, topic, len(topic), payload,
                            len(payload), <uint16_t>packet_id)

    def drop_publish(self, bytes topic not None, bytes payload not None, int qos, int packet_id,
                           str reason not None):
        """For the handler: acknowledge the message, and publish nothing."""
        self.acknowledge_and_drop(<uint8_t>qos, <uint16_t>packet_id, topic, len(topic), payload, len(payload), reason)

    def ignore(self):
        """For the handler: ignore further input; the connection will be closed soon."""
        self.phase = ENDED

    def reject(self, str reason not None):
        """For the handler: the packet violates the protocol, and the connection must end."""
        self.protocol_error(reason)
