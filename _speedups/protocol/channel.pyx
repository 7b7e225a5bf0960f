"""One connection's protocol life, without the socket: bytes in, packets acted on, bytes out.

PUBLISH, its acknowledgements and PINGREQ never become Python objects; every other packet is decoded and handed to the
node's handler. Never raises at the network: a fault is noted in `fault`, what follows is ignored, and whoever owns the
socket closes it. Knows no socket, no clock (the turn's tick is its time), no configuration but the turn's limits.

The handler is any object with `packet(channel, packet)`, called for CONNECT, SUBSCRIBE, UNSUBSCRIBE and DISCONNECT, and
`denied(channel, topic)`, called when the client first publishes what it may not. With hooks for PUBLISH, also
`publish(channel, topic, payload, qos, retain, packet_id, dup)`, which calls `publish_as` or `publish_for_nobody`.
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

cdef enum:
    CONNECT_MAX = 327710      # bytes of the largest CONNECT: header and five fields of 65 535 bytes


cdef class Channel(Outlet):
    """A connection's protocol side.

    Args:
        router: of the node.
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
        """CONNECT is accepted: packets are taken from now on, and the session's messages flow.

        Args:
            session: of the client.
            level: protocol level.
            keep_alive: seconds; 0 = the client may be silent for ever.
        """
        self.level = <uint8_t>level
        self.session = session
        self.phase = OPEN
        # One and a half times the period [MQTT-3.1.2-24], in ticks, none of which counts until it is over.
        self.keep_alive_ticks = <uint32_t>(keep_alive * 6 + 1.999) if keep_alive else 0
        session.attach(self, level)

    def detach(self):
        """The session goes on without this connection, or ends."""
        session, self.session = self.session, None
        if session is not None and session.outlet is self:
            session.detach()
        return session

    cdef int drained(self) except -1:
        if self.session is not None:
            self.turn.schedule_send(self.session)
        return 0

    cdef int protocol_error(self, str reason) except -1:
        """The client broke the protocol: the connection is to end."""
        if self.fault is None:
            self.fault = reason
            self.turn.counters[MALFORMED_PACKETS] += 1
        self.phase = ENDED
        return 0

    cdef int close_gate(self, uint8_t reason) noexcept:
        """Handle no more packets, or read no more, for this reason."""
        self.gate |= reason
        return 0

    cdef int open_gate(self, uint8_t reason) except -1:
        """The reason holds no longer; if none is left that keeps packets from being handled, go on."""
        self.gate &= ~reason
        return 0 if self.gate & PARSE_GATE else self.gate_opened()

    cdef int gate_opened(self) except -1:
        """Packets may be handled again: the owner of the socket handles those that came meanwhile, and reads on."""
        return 0

    cdef int charge(self, bint is_publish, Py_ssize_t size) except -1:
        """A packet was taken: whoever knows the client's rate may say that the next has to wait."""
        return 0

    cdef Py_ssize_t feed(self, const uint8_t* data, Py_ssize_t n) except -1:
        """Act on the packets in `n` bytes; returns how many bytes were used. The rest must come again, with more."""
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
                    self.protocol_error("the first packet is not CONNECT [MQTT-3.1.0-1]")
                    return n
                if limit > CONNECT_MAX:
                    limit = CONNECT_MAX
            at.p = p
            found = read_header(&at, &first_byte, &remaining)
            if found == 0:
                break                                  # the header is incomplete
            if found < 0:
                self.protocol_error("the Remaining Length has more than four bytes [MQTT-2.2.3]")
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
        """Act on one packet."""
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
                return self.protocol_error("PINGREQ with flags or a body [MQTT-2.2.2-2]")
            p = self.reserve(2)
            p[0] = 0xD0
            p[1] = 0
            self.turn.counters[PACKETS_SENT] += 1
            return 0
        else:
            self.dispatch(first_byte, body, n)
        # Whoever gives a store that is behind more to do, or to remember, is not read until it has caught up.
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
            return self.protocol_error("PUBLISH with QoS 3 [MQTT-3.3.1-4]")
        if qos == 0 and first_byte & 8 and self.level > 3:
            return self.protocol_error("PUBLISH with QoS 0 and DUP [MQTT-3.3.1-2]")
        if n < 2 + 2 * (qos > 0):
            return self.protocol_error("PUBLISH is too short")
        topic_length = body[0] << 8 | body[1]
        payload = topic + topic_length
        if payload + 2 * (qos > 0) > end:
            return self.protocol_error("the topic name of PUBLISH is longer than the packet")
        fault = self.router.check_topic(topic, topic_length, self.level)
        if fault:
            return self.protocol_error(f"PUBLISH: {fault_text(fault)}")
        if qos:
            packet_id = payload[0] << 8 | payload[1]
            if packet_id == 0:
                return self.protocol_error("PUBLISH with packet identifier 0 [MQTT-2.3.1-1]")
            payload += 2
        self.turn.counters[PUBLISH_RECEIVED] += 1
        self.turn.counters[PUBLISH_BYTES_RECEIVED] += end - payload
        if self.turn.tracer is not None:
            self.turn.tracer.received(self, self.session.client_id, topic, topic_length, payload, end - payload, qos,
                                      packet_id, first_byte & 8 != 0)
        if is_sys(topic, topic_length):
            # Only the broker publishes there [MQTT-4.7.2-1]; level 4 has no way to say so but to acknowledge.
            return self.acknowledge_and_drop(qos, packet_id, topic, topic_length, payload, end - payload,
                                        "only the broker publishes there")
        if self.session.rights is not None and not self.router.may_publish(self.session.rights, topic, topic_length):
            self.turn.counters[PUBLISH_DENIED] += 1
            if self.session.rights.first_denial():
                self.handler.denied(self, topic[:topic_length])
            return self.acknowledge_and_drop(qos, packet_id, topic, topic_length, payload, end - payload,
                                        "the client may not publish there")
        if self.turn.hears_publish and not (qos == 2 and self.session.awaits(packet_id)):
            self.handler.publish(self, topic[:topic_length], payload[:end - payload], qos, first_byte & 1, packet_id,
                                 first_byte & 8)
            return 0
        return self.accept_publish(first_byte, packet, body - packet, topic, topic_length, payload, end - payload,
                                   packet_id)

    cdef int accept_publish(self, uint8_t first_byte, const uint8_t* packet, Py_ssize_t header, const uint8_t* topic,
                            Py_ssize_t topic_length, const uint8_t* payload, Py_ssize_t size,
                            uint16_t packet_id) except -1:
        """Publish what the client may publish, and acknowledge it.

        `packet` is the PUBLISH as it came, whose topic name was checked just before, with a fixed header of `header`
        bytes; or NULL.
        """
        cdef uint8_t qos = first_byte >> 1 & 3
        cdef Publication publication = publication_of(topic, topic_length, payload, size, qos, first_byte & 1)
        cdef Py_ssize_t before
        cdef Message* message
        publication.publisher = <void*>self.session
        publication.dup = first_byte & FLAG_DUP
        publication.looked_up = packet != NULL
        if qos == 0:
            # The packet as it came is what receivers get, if it has no flags and no longer header than needed.
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
            # A duplicate: PUBREC again, but not before the first one may leave.
            return self.acknowledge(PUBREC << 4, packet_id, self.session.recorded() and self.turn.behind())
        if self.session.incoming.count >= self.turn.limits.max_awaiting_release or (
                self.session.incoming.count
                and self.session.incoming.bytes + topic_length + size > self.turn.limits.max_queued_bytes):
            return self.protocol_error("too many QoS 2 messages wait for PUBREL")
        message = message_new(topic, topic_length, payload, size, 2, first_byte & 1)
        if message == NULL:
            raise MemoryError
        self.session.await_release(packet_id, message)
        return self.acknowledge(PUBREC << 4, packet_id, self.session.recorded())

    cdef int acknowledge_and_drop(self, uint8_t qos, uint16_t packet_id, const uint8_t* topic, Py_ssize_t topic_length,
                             const uint8_t* payload, Py_ssize_t size, str reason) except -1:
        """Acknowledge a message that goes nowhere: below level 5 there is no word for a refusal [MQTT-3.3.5-2]."""
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
            return self.protocol_error("an acknowledgement with wrong flags [MQTT-2.2.2-2]")
        if n != 2:
            return self.protocol_error("an acknowledgement that is not two bytes long")
        packet_id = body[0] << 8 | body[1]
        if packet_id == 0:
            return self.protocol_error("an acknowledgement with packet identifier 0 [MQTT-2.3.1-1]")
        if kind == PUBACK:
            fits = self.session.puback(packet_id)
        elif kind == PUBREC:
            fits = self.session.pubrec(packet_id)
        elif kind == PUBCOMP:
            fits = self.session.pubcomp(packet_id)
        else:
            return self.handle_pubrel(packet_id)
        if not fits:
            return self.protocol_error("an acknowledgement that doesn't fit the QoS or the state of its PUBLISH")
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
        """Decode a packet that is not hot and give it to the handler."""
        if self.phase == OPEN and first_byte >> 4 == CONNECT:
            return self.protocol_error("a second CONNECT [MQTT-3.1.0-2]")
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
        """For the handler: take no more packets until it is told to go on."""
        self.close_gate(HANDLER_BUSY)

    def publish_as(self, bytes topic not None, bytes payload not None, int qos, bint retain, int packet_id, bint dup):
        """For the handler: publish what came, or what became of it, under a valid topic name; and acknowledge it."""
        self.accept_publish(<uint8_t>(0x30 | dup << 3 | qos << 1 | retain), NULL, 0, topic, len(topic), payload,
                            len(payload), <uint16_t>packet_id)

    def publish_for_nobody(self, bytes topic not None, bytes payload not None, int qos, int packet_id,
                           str reason not None):
        """For the handler: acknowledge what came, and publish nothing."""
        self.acknowledge_and_drop(<uint8_t>qos, <uint16_t>packet_id, topic, len(topic), payload, len(payload), reason)

    def ignore(self):
        """For the handler: what still comes is not for us; the connection is to be closed soon."""
        self.phase = ENDED

    def reject(self, str reason not None):
        """For the handler: the packet breaks the protocol, and the connection is to end."""
        self.protocol_error(reason)
