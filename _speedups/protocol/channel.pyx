"""The MQTT protocol of one connection, without the socket: bytes in, packets handled, bytes out.

PUBLISH, its acknowledgements and PINGREQ never become Python objects; every other packet is decoded and handed to the
node's handler. Network input never raises: `fault` is set, further input is ignored, and the owner of the socket
closes it. It has no socket, no clock (the turn's tick is its time), and no configuration except the turn's limits.

The handler is any object with these methods. `packet(channel, packet)` handles CONNECT, SUBSCRIBE, UNSUBSCRIBE,
DISCONNECT and AUTH. `denied(channel, topic)` is called at the client's first denied PUBLISH. `transact(channel,
received)` gets the messages to `$transaction/...`, and calls `take_publish` or `drop_publish`. With hooks for PUBLISH,
also `publish(channel, received)`, which calls `publish_as` or `drop_publish`.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcmp

from ..base.cursor cimport Cursor, read_header, read_varint, varint_size
from ..base.tick cimport TICKS_PER_SECOND
from ..codec.decode cimport decode_body
from ..codec.packets cimport BRIDGE_BIT
from ..codec.properties cimport PropertyScan, property_fault, scan_properties
from ..codec.publish cimport FLAG_DUP, FLAG_RETAIN, is_transaction
from ..codec.tables cimport (
    AUTH, CODE_MALFORMED, CODE_PACKET_TOO_LARGE, CODE_PACKETS, CODE_TOPIC_ALIAS_INVALID, CODE_TOPIC_NAME_INVALID,
    CONNECT, DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBSCRIBE, UNSUBSCRIBE,
)
from ..codec.topics cimport TOPIC_BAD_UTF8, TOPIC_TOO_MANY_LEVELS, fault_text
from ..routing.plans cimport prefix_hash
from ..routing.router cimport Router
from ..session.counters cimport (
    MALFORMED_PACKETS, PACKETS_RECEIVED, PACKETS_SENT, PUBLISH_BYTES_RECEIVED, PUBLISH_DENIED, PUBLISH_RECEIVED,
)
from ..session.journal cimport BLOCK_MAX
from ..session.message cimport Publication, publication_of
from ..session.session cimport Session
from ..session.tenant cimport Tenant
from ..session.turn cimport (
    NO_REASON, NO_RIGHT, NOT_REWRITABLE, PAYLOAD_NOT_UTF_8, TOO_MANY_LEVELS, Outlet, record_position,
)
from .client_aliases cimport client_aliases_free, resolve_alias
from .incoming_publish cimport (
    ALIAS_TOO_HIGH, NO_TOPIC, PROPERTY_FAULT, SOUND, Incoming, is_text, read_properties, read_publish,
)
from .publishing cimport (
    accept_publish, has_schema, may_publish, refuse_publish, release_publish, repeat_pubrec, reserved_refusal,
)
from .read_gate cimport CONNECT_PENDING, HANDLER_BUSY, PARSE_GATE, STORE_BEHIND

from ..codec.errors import MalformedPacket, ProtocolError, UnacceptableProtocol
from . import close_reasons
from .close_reasons import CloseReason
from .pending_publish import PendingPublish

cdef enum:
    TLS_HANDSHAKE = 0x16      # the first byte of a client that begins TLS
    PACKET_IDS = 65535        # so many messages can be under way
    CONNECT_PROPERTIES = 10   # bytes of CONNECT before its property block
    CONNACK_MIN = 5           # bytes of the smallest CONNACK
    CONNECT_MAX = 327710      # bytes of the largest CONNECT: header and five fields of 65 535 bytes


cdef uint32_t largest_for(const uint8_t* connect, Py_ssize_t n) noexcept:
    """The Maximum Packet Size in a CONNECT of level 5, which may be malformed [5: MQTT-3.2.2-19]; 0 = any.

    If it can't be read, the client gets the smallest CONNACK.
    """
    cdef Cursor at
    cdef PropertyScan scan
    cdef uint32_t length = 0
    at.p = connect + min(n, CONNECT_PROPERTIES)
    at.end = connect + n
    if read_varint(&at, &length) < 0:
        return CONNACK_MIN
    if scan_properties(at.p, min(<Py_ssize_t>length, at.end - at.p), CONNECT, &scan) == 0 or scan.maximum_packet_size:
        return scan.maximum_packet_size
    return CONNACK_MIN


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
        self.own_max_packet_size = <uint32_t>-1

    def __dealloc__(self):
        client_aliases_free(self.client_aliases)

    @property
    def protocol_level(self):
        """3, 4 or 5; 0 before CONNECT."""
        return self.level

    @property
    def wants_reasons(self):
        """Whether the client takes reason strings in acknowledgements."""
        return self.level == 5 and self.problem_information

    @property
    def maximum_packet_size(self):
        """Bytes of the largest packet that the client takes."""
        return self.largest or <uint32_t>-1

    def limit_output(self, uint32_t maximum_packet_size):
        """Set the bytes of the largest packet that a client takes whose CONNECT is not accepted yet; 0 = any."""
        self.largest = maximum_packet_size or <uint32_t>-1

    @property
    def max_packet_size(self):
        """Bytes of the largest packet that is accepted from the client [5: 3.2.2.3.6]."""
        return min(self.turn.limits.max_packet_size, self.own_max_packet_size)

    @property
    def window(self):
        """Receive Maximum of the client [5: 3.1.2.11.3]."""
        return self.receive_maximum

    def accept(self, Session session not None, int level, double keep_alive, terms not None):
        """Accept CONNECT: packets are handled from now on, and the session's messages are sent.

        Args:
            session: the client's session.
            level: protocol level.
            keep_alive: seconds; 0 = the client never times out.
            terms: the Terms of the connection.
        """
        self.level = <uint8_t>level
        self.largest = <uint32_t>terms.maximum_packet_size or <uint32_t>-1
        self.receive_maximum = terms.receive_maximum
        self.problem_information = terms.problem_information
        self.aliases.maximum = terms.topic_aliases
        self.bridge = terms.bridge
        self.link = terms.link
        if level == 5:
            self.promised_packet_size = self.max_packet_size
            self.promised_receive_maximum = self.turn.limits.receive_maximum
            self.promised_aliases = self.turn.limits.topic_alias_maximum
        self.maximum_qos = terms.maximum_qos
        self.refused_flags = 0 if terms.retain_available else FLAG_RETAIN
        self.keeps_retain = self.bridge or level == 5
        self.session = session
        if session.tenant is not None:
            session.tenant.prefix_hash = prefix_hash(session.tenant.prefix, session.tenant.prefix_size)
            self.meter()
        self.phase = OPEN
        # One and a half times the period [MQTT-3.1.2-24], in ticks; a tick counts only when it is over.
        self.keep_alive_ticks = <uint32_t>(keep_alive * 1.5 * TICKS_PER_SECOND + 1.999) if keep_alive else 0
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

    cdef int protocol_error(self, object reason) except -1:
        """Note that the client violated the protocol: the connection must end for this CloseReason."""
        if self.fault is None:
            self.fault = reason
            self.turn.counters[MALFORMED_PACKETS] += 1
        self.phase = ENDED
        return 0

    cdef int close_gate(self, uint8_t reason) noexcept:
        """Stop handling packets, or stop reading, for this reason."""
        self.gate |= reason
        return 0

    cdef bint lift(self, uint8_t reasons) noexcept:
        """Remove the reasons; returns whether packets may be handled. The caller resumes."""
        self.gate &= ~reasons
        return not self.gate & PARSE_GATE

    cdef int open_gate(self, uint8_t reason) except -1:
        """Remove the reason; if no reason against handling packets remains, resume."""
        return self.gate_opened() if self.lift(reason) else 0

    cdef int gate_opened(self) except -1:
        """Resume: the owner of the socket handles the packets that wait, and reads on."""
        return 0

    cdef int meter(self) except -1:
        """Limit the rates of its packets from now on; a subclass has rates."""
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
            if limit > self.own_max_packet_size:
                limit = self.own_max_packet_size
            if limit < self.promised_packet_size:
                limit = self.promised_packet_size
            if self.phase != OPEN:
                if self.phase == EXPECTING and (p[0] >> 4 != CONNECT or p[0] == TLS_HANDSHAKE):
                    self.protocol_error(close_reasons.not_connect(p[:min(<Py_ssize_t>4, end - p)]))
                    return n
                if self.phase == AUTHENTICATING and p[0] >> 4 not in (AUTH, DISCONNECT):
                    self.protocol_error(close_reasons.NOT_AUTH)
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
                self.protocol_error(CloseReason(
                    CODE_PACKET_TOO_LARGE, f"a packet of {remaining + (q - p)} bytes, {limit} are allowed"))
                return n
            if end - q < <Py_ssize_t>remaining:
                self.need = remaining + <uint32_t>(q - p)
                break
            if q - p != 1 + varint_size(remaining) and (self.level == 5 or self.begins_level_5(q, remaining)):
                self.protocol_error(close_reasons.LENGTH_FORM)
                return n
            self.turn.counters[PACKETS_RECEIVED] += 1
            self.handle_packet(p[0], p, q, remaining)
            if self.metered:
                self.charge(p[0] >> 4 == PUBLISH, remaining + (q - p))
            p = q + remaining
        return n if self.phase == ENDED else p - data

    cdef bint begins_level_5(self, const uint8_t* body, Py_ssize_t n) noexcept:
        """Whether it is the body of a CONNECT of level 5 or later, whose faults get a reason code in CONNACK."""
        if self.phase == EXPECTING and n > 6 and memcmp(body, b"\0\4MQTT", 6) == 0 and body[6] & ~BRIDGE_BIT >= 5:
            self.level = 5
            if body[6] & ~BRIDGE_BIT == 5:
                self.largest = largest_for(body, n)
            return True
        return False

    cdef int handle_packet(self, uint8_t first_byte, const uint8_t* packet, const uint8_t* body,
                           Py_ssize_t n) except -1:
        """Handle one packet."""
        cdef int kind = first_byte >> 4
        cdef uint64_t before = record_position(self.turn)
        cdef bint adds
        cdef uint8_t* p
        if self.turn.parts is not None:
            self.turn.journal.touched = 0
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
        if self.turn.parts is not None:
            if kind == PUBLISH or kind == PUBREL:
                self.has_published = True
                if not first_byte & 6:
                    self.note_reached()
            adds = record_position(self.turn) > before
            if not self.gate & PARSE_GATE and self.waits_for_shard(self.turn.journal.touched if adds else 0):
                return 0
            if adds and (self.turn.journal.full or self.turn.journal.weight > BLOCK_MAX):
                self.turn.seal()
            return 0
        adds = record_position(self.turn) > before or self.held > self.turn.committed
        if (adds or kind in (SUBSCRIBE, UNSUBSCRIBE)) and not self.gate & PARSE_GATE and self.turn.overloaded():
            self.close_gate(STORE_BEHIND)
            self.turn.await_store(self)
        elif adds and (self.turn.journal.full or self.turn.journal.weight > BLOCK_MAX):
            self.turn.seal()
        return 0

    cdef bint waits_for_shard(self, uint64_t shards) except -1:
        """Whether it is not read until a shard has caught up: one of these, or one that it waits for, is behind."""
        cdef int shard = self.turn.shard_behind(shards | (self.shards if self.holding else 0))
        if shard < 0:
            return False
        self.close_gate(STORE_BEHIND)
        self.turn.await_shard(self, shard)
        return True

    cdef int handle_publish(self, uint8_t first_byte, const uint8_t* packet, const uint8_t* body,
                            Py_ssize_t n) except -1:
        cdef Incoming incoming
        cdef Publication* publication = &incoming.publication
        cdef const uint8_t* name                   # the topic name as the client knows it ...
        cdef Py_ssize_t length                     # ... and its bytes
        cdef bytes renamed = None                  # the topic name of the publication, if a rule has made it
        cdef int fault, why
        if first_byte >> 1 & 3 > self.maximum_qos or first_byte & self.refused_flags:
            return self.refuse_kind(first_byte >> 1 & 3)
        fault = read_publish(&incoming, first_byte, packet, body, n, self.level)
        if fault == SOUND and self.level == 5:
            fault = self.take_properties(&incoming, first_byte, packet)
        if fault != SOUND:
            return self.publish_error(&incoming, fault)
        publication.publisher = <void*>self.session
        if publication.qos == 2 and self.session.awaits(incoming.packet_id):
            # Before any refusal: after that its identifier would be free [5: MQTT-4.3.3-9], and it awaits PUBREL here.
            self.turn.counters[PUBLISH_RECEIVED] += 1
            self.turn.counters[PUBLISH_BYTES_RECEIVED] += publication.payload_length
            return repeat_pubrec(self, self.session, publication, incoming.packet_id)
        if publication.qos and self.level == 5 and not self.within_receive_maximum():
            return 0
        name, length = publication.topic, publication.topic_length
        if self.session.tenant is None:
            fault = self.router.check_topic(publication, 0, self.level)
        else:
            fault = self.qualify(publication)
        if fault:
            return self.refuse_name(&incoming, fault)
        self.turn.counters[PUBLISH_RECEIVED] += 1
        self.turn.counters[PUBLISH_BYTES_RECEIVED] += publication.payload_length
        if self.session.tenant is not None:
            publication.tenant = <void*>self.session.tenant
            self.session.tenant.received += 1
            self.session.tenant.received_bytes += publication.payload_length
        if self.turn.rewrite is not None:
            # Before rights and traces: both are of the topic that the message gets.
            renamed = self.turn.rewrite(self, name[:length])
            if not self.rename(publication, name, length, renamed):
                return refuse_publish(self, self.session, publication, incoming.packet_id, NOT_REWRITABLE)
            name, length = renamed, len(renamed)
        if self.turn.tracer is not None:
            self.turn.tracer.received(self, self.session.client_id, publication, incoming.packet_id)
        why = NO_REASON
        if name[0] == c'$':
            if self.level == 5 and is_transaction(name, length):
                self.handler.transact(self, pending(&incoming, name[:length]))
                return 0
            why = reserved_refusal(self.router, self.session, publication, name, length)
        elif self.session.rights is not None and not may_publish(self.session.rights, publication):
            why = NO_RIGHT
        if why == NO_REASON and publication.invalid_payload:
            why = PAYLOAD_NOT_UTF_8
        if why == NO_RIGHT:
            self.note_denial(publication)
        if why != NO_REASON:
            return refuse_publish(self, self.session, publication, incoming.packet_id, why)
        if self.turn.has_publish_hook and self.is_undecided(publication, name, length):
            return self.hand_to_hooks(&incoming)
        if publication.qos == 0:
            self.router.publish_now_or_later(publication)
        elif accept_publish(self, self.router, publication, incoming.packet_id, not self.link):
            return self.protocol_error(close_reasons.TOO_MANY_UNRELEASED)
        return 0

    cdef int publish_error(self, const Incoming* incoming, int fault) except -1:
        """End the connection for a fault of PUBLISH."""
        if fault == PROPERTY_FAULT:
            return self.protocol_error(CloseReason(
                incoming.property_code, f"PUBLISH: {property_fault(&incoming.scan)}"))
        if fault == ALIAS_TOO_HIGH:
            return self.protocol_error(CloseReason(CODE_TOPIC_ALIAS_INVALID, (
                f"topic alias {incoming.scan.topic_alias} is above {self.max_alias()} [5: MQTT-3.3.2-9]")))
        return self.protocol_error(close_reasons.PUBLISH_FAULTS[fault])

    cdef int refuse_kind(self, uint8_t qos) except -1:
        """Refuse a PUBLISH of a QoS, or with RETAIN, that the node does not take. CONNACK has these limits."""
        if qos == 3:
            return self.protocol_error(close_reasons.PUBLISH_QOS_3)
        return self.protocol_error(
            close_reasons.QOS_NOT_SUPPORTED if qos > self.maximum_qos else close_reasons.RETAIN_NOT_SUPPORTED)

    cdef int take_properties(self, Incoming* incoming, uint8_t first_byte, const uint8_t* packet) except -1:
        """Take the property block from the front of the payload; 0, or the fault.

        Topic Alias and Message Expiry Interval are taken out: all else travels as it is.
        """
        cdef Publication* publication = &incoming.publication
        cdef int fault = read_properties(incoming, first_byte, packet)
        if fault != SOUND:
            return fault
        if publication.properties_length:
            if incoming.scan.payload_format and self.turn.limits.validate_payload:
                publication.invalid_payload = not is_text(publication.payload, publication.payload_length)
            self.router.set_properties(
                publication, publication.properties, publication.properties_length, &incoming.scan)
            if incoming.scan.alias != NULL:
                publication.packet_5 = NULL
                if incoming.scan.topic_alias > self.max_alias():       # 0 is refused by the scan [5: MQTT-3.3.2-12]
                    return ALIAS_TOO_HIGH
                resolve_alias(&self.client_aliases, publication, incoming.scan.topic_alias)
        return SOUND if publication.topic_length else NO_TOPIC

    cdef uint32_t max_alias(self) noexcept:
        return max(<uint32_t>self.turn.limits.topic_alias_maximum, <uint32_t>self.promised_aliases)

    cdef int qualify(self, Publication* publication) except -1:
        """Put the prefix of the client's tenant in front of the topic name, and look it up; 0, or a TopicFault."""
        cdef Tenant tenant = self.session.tenant
        return self.router.qualify(publication, tenant.prefix, tenant.prefix_size, tenant.prefix_hash, self.level)

    cdef int refuse_name(self, const Incoming* incoming, int fault) except -1:
        """Refuse a PUBLISH for the fault of its topic name."""
        if fault == TOPIC_TOO_MANY_LEVELS and incoming.packet_id and self.level == 5:
            # Well-formed, but not accepted [5: 3.4.2.1]. After DISCONNECT its client would send it again for ever.
            return refuse_publish(self, self.session, &incoming.publication, incoming.packet_id, TOO_MANY_LEVELS)
        return self.protocol_error(CloseReason(
            CODE_MALFORMED if fault == TOPIC_BAD_UTF8 else CODE_TOPIC_NAME_INVALID,
            f"PUBLISH: topic name: {fault_text(fault)}"))

    cdef bint rename(self, Publication* publication, const uint8_t* name, Py_ssize_t length, bytes topic) except -1:
        """Give a publication the topic name of a rule in place of `name`. False: the new one is not valid.

        The caller keeps the new name alive.
        """
        cdef Py_ssize_t n = len(topic)
        if n == length and memcmp(<const uint8_t*>topic, name, n) == 0:
            return True
        publication.topic = topic
        publication.topic_length = n
        publication.hidden = 0
        if (self.qualify(publication) if self.session.tenant is not None
                else self.router.check_topic(publication, 0, self.level)):
            return False
        publication.packet = publication.packet_5 = NULL    # they have the name as received
        return True

    cdef bint within_receive_maximum(self) except -1:
        """Count a PUBLISH that will be acknowledged. False: there are too many, and it is refused [5: MQTT-3.3.4-7]."""
        self.unacknowledged += 1
        if (self.unacknowledged > (PACKET_IDS if self.link else self.turn.limits.receive_maximum)
                and self.unacknowledged > self.promised_receive_maximum):
            self.protocol_error(close_reasons.RECEIVE_MAXIMUM_EXCEEDED)
            return False
        return True

    cdef int note_denial(self, const Publication* publication) except -1:
        """A message was refused whose publisher has no right to publish it: count it, and report the first one."""
        self.turn.counters[PUBLISH_DENIED] += 1
        if self.session.rights.first_denial():
            self.handler.denied(self, publication.topic[:publication.topic_length])
        return 0

    cdef bint is_undecided(self, const Publication* publication, const uint8_t* name, Py_ssize_t n) except -1:
        """Whether the handler decides over a message: hooks do over each, a schema over one that does not fit."""
        if self.turn.hooks_decide or name[0] == c'$':          # $delayed/SECONDS/TOPIC may have a schema
            return True
        if publication.retain and publication.payload_length == 0:          # it clears [MQTT-3.3.1-10]
            return False
        return (has_schema(self.turn.bound, publication, name, n)
                and not self.turn.fits(name[:n], publication.payload[:publication.payload_length]))

    cdef int hand_to_hooks(self, const Incoming* incoming) except -1:
        self.handler.publish(self, pending(incoming, incoming.publication.topic[:incoming.publication.topic_length]))
        return 0

    cdef int handle_acknowledgement(self, uint8_t first_byte, const uint8_t* body, Py_ssize_t n) except -1:
        cdef int kind = first_byte >> 4
        cdef uint16_t packet_id
        cdef uint8_t code = 0
        cdef bint fits = True
        if self.level > 3 and first_byte & 15 != (2 if kind == PUBREL else 0):
            return self.protocol_error(close_reasons.ACK_FLAGS)
        if n != 2:
            if n < 2 or self.level < 5:
                return self.protocol_error(close_reasons.ACK_SIZE)
            code = body[2]
            if not CODE_PACKETS[code] >> kind & 1:
                return self.protocol_error(close_reasons.ACK_REASON_CODE)
            if n > 3 and not self.check_properties(body + 3, body + n, kind):
                return 0
        packet_id = body[0] << 8 | body[1]
        if packet_id == 0:
            return self.protocol_error(close_reasons.ACK_PACKET_ID)
        if kind == PUBACK:
            fits = self.session.puback(packet_id, code)
        elif kind == PUBREC:
            fits = self.session.pubrec(packet_id, code)
        elif kind == PUBCOMP:
            fits = self.session.pubcomp(packet_id)
        else:
            return release_publish(self, self.router, self.session, packet_id)
        if not fits:
            return self.protocol_error(close_reasons.ACK_STATE)
        return 0

    cdef bint check_properties(self, const uint8_t* p, const uint8_t* end, int kind) except -1:
        """Check the property block that ends an acknowledgement. False: the packet is refused."""
        cdef Cursor at
        cdef PropertyScan scan
        cdef uint32_t length = 0
        cdef int code
        at.p = p
        at.end = end
        if read_varint(&at, &length) < 0 or at.p - p != varint_size(length) or at.end - at.p != <Py_ssize_t>length:
            self.protocol_error(close_reasons.ACK_SIZE)
            return False
        code = scan_properties(at.p, length, kind, &scan)
        if code:
            self.protocol_error(CloseReason(code, f"an acknowledgement: {property_fault(&scan)}"))
            return False
        return True

    cdef int dispatch(self, uint8_t first_byte, const uint8_t* body, Py_ssize_t n) except -1:
        """Decode a packet that is not hot and pass it to the handler."""
        if self.phase != EXPECTING and first_byte >> 4 == CONNECT:
            return self.protocol_error(close_reasons.SECOND_CONNECT)
        self.begins_level_5(body, n)
        try:
            packet = decode_body(first_byte, body, n, self.level or 4)
        except UnacceptableProtocol:
            packet = None
        except (MalformedPacket, ProtocolError) as fault:
            return self.protocol_error(CloseReason(fault.code, fault.reason))
        if self.phase != OPEN:
            self.phase = CONNECTING
            self.close_gate(CONNECT_PENDING)
        self.handing_up = True
        try:
            self.handler.packet(self, packet)
        finally:
            self.handing_up = False
        if self.phase == OPEN:
            self.lift(CONNECT_PENDING)
        return 0

    def pause(self):
        """For the handler: handle no more packets until the handler resumes the channel."""
        self.close_gate(HANDLER_BUSY)

    def publish_as(self, received not None):
        """For the handler: publish a PendingPublish, perhaps changed, under a valid topic name, and acknowledge it."""
        cdef bytes topic = received.topic, payload = received.payload, properties = received.properties
        cdef Publication publication = publication_of(topic, len(topic), payload, len(payload), received.qos,
                                                      received.retain)
        publication.publisher = <void*>self.session
        publication.dup = FLAG_DUP if received.dup else 0
        publication.properties = properties
        publication.properties_length = len(properties)
        publication.expires = received.expires
        publication.trace = received.trace
        if publication.qos == 0:
            self.router.publish_now_or_later(&publication)
        elif publication.qos == 2 and self.session.awaits(received.packet_id):      # again while a hook decided
            repeat_pubrec(self, self.session, &publication, received.packet_id)
        elif accept_publish(self, self.router, &publication, received.packet_id, not self.link):
            self.protocol_error(close_reasons.TOO_MANY_UNRELEASED)

    def take_publish(self, received not None, int reason_code):
        """For the handler: acknowledge a QoS 1 message that is no publication, with a reason code of success."""
        self.acknowledge(PUBACK << 4, received.packet_id, False, <uint8_t>reason_code, NO_REASON)

    def drop_publish(self, received not None, int reason_code, int why):
        """For the handler: acknowledge the message with a reason code, and publish nothing; `why` is an AckReason."""
        cdef bytes topic = received.topic, payload = received.payload, properties = received.properties
        cdef Publication publication = publication_of(topic, len(topic), payload, len(payload), received.qos, False)
        publication.properties = properties
        publication.properties_length = len(properties)
        publication.trace = received.trace
        refuse_publish(self, self.session, &publication, received.packet_id, <uint8_t>why, <uint8_t>reason_code)

    def authenticate(self):
        """For the handler: handle the client's next AUTH packet."""
        self.phase = AUTHENTICATING

    def ignore(self):
        """For the handler: ignore further input; the connection will be closed soon."""
        self.phase = ENDED

    def reject(self, reason not None):
        """For the handler: the packet violates the protocol, and the connection must end."""
        self.protocol_error(reason)


cdef object pending(const Incoming* incoming, bytes topic):
    """A PUBLISH for the handler, under this topic name."""
    cdef const Publication* publication = &incoming.publication
    return PendingPublish(topic, publication.payload[:publication.payload_length], publication.qos,
                          publication.retain != 0, incoming.packet_id, publication.dup != 0,
                          publication.properties[:publication.properties_length], publication.expires,
                          publication.trace)
