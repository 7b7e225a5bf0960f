"""From bytes to packets, protocol levels 3 (V3.1), 4 (V3.1.1) and 5.

Rules that hold here:
- No sockets, no clock, no configuration, no state but a Decoder's incomplete frame.
- A peer's fault is a MalformedPacket, which ends that peer's connection.
- The bytes of a packet are checked here, its meaning to a session is not. A wildcard in the wrong place of a topic
  filter, an empty client id or an unknown topic alias pass.
- Level 3 is lenient where the V3.1 text marks bits as unused, level 4 and 5 are exact.

Statements are numbered as in 3.1.1; a number of level 5 is marked "5:".
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp

from ..base.cursor cimport VARINT_MAX, Cursor, read_field, read_header, read_u8, read_u16, varint_size
from .fields cimport (
    check_level, decode_binary, decode_packet_id, decode_reason_code, decode_reason_codes, decode_text,
    decode_topic_filter, decode_topic_name, short_body,
)
from .packets cimport (
    BRIDGE_BIT, Acknowledgement, Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Pubcomp, Publish,
    Pubrec, Pubrel, Suback, Subscribe, Unsuback, Unsubscribe,
)
from .properties cimport decode_properties
from .tables cimport (
    ANY_FLAGS, AUTH, CONNACK, CONNECT, DISCONNECT, PINGREQ, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL,
    REQUIRED_FLAGS, RETURN_CODE_MAX, SUBACK, SUBSCRIBE, UNSUBACK, UNSUBSCRIBE, WILL,
)
from .topics cimport is_shared

from .errors import MalformedPacket, PacketTooLarge, ProtocolError, UnacceptableProtocol
from .tables import TYPE_NAMES


cdef object refuse_flags(int packet_type, str statement):
    return MalformedPacket(f"{TYPE_NAMES[packet_type]}: reserved flags are not as required [{statement}]")


cdef int decode_protocol_level(Cursor* c, bint* bridge) except -1:
    """Decode the protocol name and level of a CONNECT, which determine the form of the rest; and the bridge bit."""
    cdef const uint8_t* p
    cdef Py_ssize_t n
    cdef uint8_t level
    if read_field(c, &p, &n) == -1:
        raise short_body(CONNECT, "protocol name")
    if not (n == 4 and memcmp(p, b"MQTT", 4) == 0) and not (n == 6 and memcmp(p, b"MQIsdp", 6) == 0):
        name = PyBytes_FromStringAndSize(<const char*>p, n if n < 32 else 32)
        raise UnacceptableProtocol(f"CONNECT: protocol name {name!r} is unknown [MQTT-3.1.2-1]")
    if read_u8(c, &level) == -1:
        raise short_body(CONNECT, "protocol level")
    if level & BRIDGE_BIT and level & ~BRIDGE_BIT < 5:
        bridge[0] = True
        level &= ~BRIDGE_BIT
    if level != 3 if n == 6 else (level != 4 and level != 5):
        raise UnacceptableProtocol(f"CONNECT: protocol level {level} is not supported [MQTT-3.1.2-2]")
    return level


cdef Connect decode_connect(Cursor* c, uint8_t first_byte):
    cdef Connect packet = Connect.__new__(Connect)
    cdef uint8_t flags
    cdef uint16_t keep_alive
    cdef bint bridge = False
    cdef int level = decode_protocol_level(c, &bridge)
    packet.protocol_level = level
    packet.bridge = bridge
    if level > 3 and first_byte & 0x0F:
        raise refuse_flags(CONNECT, "MQTT-2.2.2-2")
    if read_u8(c, &flags) == -1:
        raise short_body(CONNECT, "connect flags")
    if level > 3 and flags & 0x01:
        raise refuse_flags(CONNECT, "MQTT-3.1.2-3")
    if read_u16(c, &keep_alive) == -1:
        raise short_body(CONNECT, "keep alive")
    packet.clean_start = flags & 0x02 != 0
    packet.keep_alive = keep_alive
    packet.properties = decode_properties(c, CONNECT, CONNECT) if level == 5 else {}
    packet.client_id = decode_text(c, CONNECT, "client identifier")
    packet.will_payload = b""
    packet.will_properties = {}
    if flags & 0x04:
        decode_will(c, packet, flags)
    elif level > 3 and flags & 0x38:
        # Level 3 disregards the will bits of a client without a will.
        raise MalformedPacket("CONNECT: Will QoS or Will Retain without Will Flag "
                              "[MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT-3.1.2-15]")
    decode_credentials(c, packet, flags)
    return packet


cdef object decode_will(Cursor* c, Connect packet, uint8_t flags):
    packet.will_qos = flags >> 3 & 3
    packet.will_retain = flags & 0x20 != 0
    if packet.will_qos == 3:
        raise MalformedPacket("CONNECT: Will QoS is 3 [MQTT-3.1.2-14]")
    if packet.protocol_level == 5:
        packet.will_properties = decode_properties(c, CONNECT, WILL)
    packet.will_topic = decode_topic_name(c, CONNECT, "will topic", packet.protocol_level, False)
    # Bytes, not text, at every level: V3.1 too publishes the bytes after the two length bytes.
    packet.will_payload = decode_binary(c, CONNECT, "will message")


cdef object decode_credentials(Cursor* c, Connect packet, uint8_t flags):
    """User name and password. At level 3 the Remaining Length takes precedence over their flags."""
    cdef int level = packet.protocol_level
    if flags & 0x80 and not (level == 3 and c.p == c.end):
        packet.username = decode_text(c, CONNECT, "user name")
    if flags & 0x40 and not (level == 3 and c.p == c.end):
        if level < 5 and not flags & 0x80:
            raise MalformedPacket("CONNECT: a password without a user name [MQTT-3.1.2-22]")
        packet.password = decode_binary(c, CONNECT, "password")
    elif flags & 0xC0 == 0x40 and level == 4:
        raise MalformedPacket("CONNECT: a password without a user name [MQTT-3.1.2-22]")


cdef Connack decode_connack(Cursor* c, int level):
    cdef Connack packet = Connack.__new__(Connack)
    cdef uint8_t flags, code
    if read_u8(c, &flags) == -1:
        raise short_body(CONNACK, "acknowledge flags")
    if level > 3:                      # a reserved byte at level 3
        if flags > 1:
            raise MalformedPacket("CONNACK: reserved acknowledge flags are set [MQTT-3.2.2-1]")
        packet.session_present = flags
    if level == 5:
        packet.reason_code = decode_reason_code(c, CONNACK)
        packet.properties = decode_properties(c, CONNACK, CONNACK)
    else:
        if read_u8(c, &code) == -1:
            raise short_body(CONNACK, "return code")
        if code > RETURN_CODE_MAX:
            raise MalformedPacket(f"CONNACK: return code {code} is reserved")
        packet.reason_code = code
        packet.properties = {}
    if packet.session_present and packet.reason_code:
        raise ProtocolError("CONNACK: a refused connection has a session present [MQTT-3.2.2-4]")
    return packet


cdef Publish decode_publish(Cursor* c, uint8_t first_byte, int level):
    cdef Publish packet = Publish.__new__(Publish)
    packet.qos = first_byte >> 1 & 3
    packet.retain = first_byte & 1
    packet.dup = first_byte >> 3 & 1
    if packet.qos == 3:
        raise MalformedPacket("PUBLISH: QoS is 3 [MQTT-3.3.1-4]")
    if packet.qos == 0 and packet.dup:
        if level > 3:
            raise MalformedPacket("PUBLISH: DUP is set although QoS is 0 [MQTT-3.3.1-2]")
        packet.dup = False             # "not used for messages with QoS level 0"
    packet.topic_name = decode_topic_name(c, PUBLISH, "topic name", level, level == 5)
    packet.packet_id = decode_packet_id(c, PUBLISH) if packet.qos else 0
    packet.properties = decode_properties(c, PUBLISH, PUBLISH) if level == 5 else {}
    if not packet.topic_name and "topic_alias" not in packet.properties:
        raise ProtocolError("PUBLISH: neither a topic name nor a topic alias [5: 3.3.2.1]")
    packet.payload = PyBytes_FromStringAndSize(<const char*>c.p, c.end - c.p)
    c.p = c.end
    return packet


cdef Acknowledgement decode_ack(Cursor* c, Acknowledgement packet, int packet_type, int level):
    """The four acknowledgements of PUBLISH have one layout."""
    packet.packet_id = decode_packet_id(c, packet_type)
    packet.properties = {}
    if level == 5 and c.p < c.end:
        packet.reason_code = decode_reason_code(c, packet_type)
        if c.p < c.end:
            packet.properties = decode_properties(c, packet_type, packet_type)
    return packet


cdef Subscribe decode_subscribe(Cursor* c, int level):
    cdef Subscribe packet = Subscribe.__new__(Subscribe)
    cdef str topic_filter
    cdef uint8_t options
    packet.packet_id = decode_packet_id(c, SUBSCRIBE)
    packet.properties = decode_properties(c, SUBSCRIBE, SUBSCRIBE) if level == 5 else {}
    packet.topic_filters = []
    if c.p == c.end:
        raise ProtocolError("SUBSCRIBE: there is no topic filter [MQTT-3.8.3-3]")
    while c.p < c.end:
        topic_filter = decode_topic_filter(c, SUBSCRIBE)
        if read_u8(c, &options) == -1:
            raise short_body(SUBSCRIBE, "requested QoS")
        if level == 3:
            options &= 3               # "the upper 6 bits of this byte are not used"
        if options & 3 == 3 or options & (0xC0 if level == 5 else 0xFC):
            # At level 5 the first is a protocol error, and the second is malformed [5: MQTT-3.8.3-5].
            raise (ProtocolError if level == 5 and options & 0xC0 == 0 else MalformedPacket)(
                "SUBSCRIBE: requested QoS is 3, or reserved bits are set [MQTT-3.8.3-4]")
        if options & 0x30 == 0x30:
            raise ProtocolError("SUBSCRIBE: Retain Handling is 3 [5: 3.8.3.1]")
        if options & 0x04 and is_shared(topic_filter):
            raise ProtocolError("SUBSCRIBE: No Local on a shared subscription [5: MQTT-3.8.3-4]")
        packet.topic_filters.append((topic_filter, options))
    return packet


cdef Suback decode_suback(Cursor* c, int level):
    cdef Suback packet = Suback.__new__(Suback)
    cdef uint8_t code
    packet.packet_id = decode_packet_id(c, SUBACK)
    packet.properties = decode_properties(c, SUBACK, SUBACK) if level == 5 else {}
    if level == 5:
        packet.reason_codes = decode_reason_codes(c, SUBACK)
        return packet
    packet.reason_codes = []
    if c.p == c.end:
        raise short_body(SUBACK, "return codes")
    while read_u8(c, &code) == 0:
        if level == 3:
            code &= 3                  # "the upper 6 bits of this byte are not used"
        if code > 2 and code != 0x80:
            raise MalformedPacket(f"SUBACK: return code 0x{code:02X} is reserved [MQTT-3.9.3-2]")
        packet.reason_codes.append(code)
    return packet


cdef Unsubscribe decode_unsubscribe(Cursor* c, int level):
    cdef Unsubscribe packet = Unsubscribe.__new__(Unsubscribe)
    packet.packet_id = decode_packet_id(c, UNSUBSCRIBE)
    packet.properties = decode_properties(c, UNSUBSCRIBE, UNSUBSCRIBE) if level == 5 else {}
    packet.topic_filters = []
    if c.p == c.end:
        raise ProtocolError("UNSUBSCRIBE: there is no topic filter [MQTT-3.10.3-2]")
    while c.p < c.end:
        packet.topic_filters.append(decode_topic_filter(c, UNSUBSCRIBE))
    return packet


cdef Unsuback decode_unsuback(Cursor* c, int level):
    cdef Unsuback packet = Unsuback.__new__(Unsuback)
    packet.packet_id = decode_packet_id(c, UNSUBACK)
    packet.properties = decode_properties(c, UNSUBACK, UNSUBACK) if level == 5 else {}
    packet.reason_codes = decode_reason_codes(c, UNSUBACK) if level == 5 else []
    return packet


cdef object decode_goodbye(Cursor* c, int packet_type, int level):
    """DISCONNECT and AUTH: at level 5 a reason code and properties, each optional."""
    cdef int code = 0
    cdef dict properties = {}
    if level == 5 and c.p < c.end:
        code = decode_reason_code(c, packet_type)
        if c.p < c.end:
            properties = decode_properties(c, packet_type, packet_type)
    return Disconnect(code, properties) if packet_type == DISCONNECT else Auth(code, properties)


cdef object decode_body(uint8_t first_byte, const uint8_t* body, Py_ssize_t n, int level):
    """The packet of one frame: its first byte, and the `n` bytes at `body` after the fixed header.

    `level` is the connection's protocol level (3, 4 or 5); a CONNECT names its own. Raises MalformedPacket.
    """
    cdef int packet_type = first_byte >> 4
    cdef object packet
    cdef Cursor c
    c.p = body
    c.end = body + n
    if packet_type == 0 or (packet_type == AUTH and level < 5):
        raise MalformedPacket(f"packet type {packet_type} is reserved [MQTT-2.2.2-2]")
    if level > 3 and packet_type != CONNECT and REQUIRED_FLAGS[packet_type] != ANY_FLAGS:
        if first_byte & 0x0F != REQUIRED_FLAGS[packet_type]:
            raise refuse_flags(packet_type, "MQTT-2.2.2-2")
    if packet_type == PUBLISH:
        packet = decode_publish(&c, first_byte, level)
    elif packet_type == PUBACK:
        packet = decode_ack(&c, <Puback>Puback.__new__(Puback), PUBACK, level)
    elif packet_type == PUBREC:
        packet = decode_ack(&c, <Pubrec>Pubrec.__new__(Pubrec), PUBREC, level)
    elif packet_type == PUBREL:
        packet = decode_ack(&c, <Pubrel>Pubrel.__new__(Pubrel), PUBREL, level)
    elif packet_type == PUBCOMP:
        packet = decode_ack(&c, <Pubcomp>Pubcomp.__new__(Pubcomp), PUBCOMP, level)
    elif packet_type == CONNECT:
        packet = decode_connect(&c, first_byte)
    elif packet_type == CONNACK:
        packet = decode_connack(&c, level)
    elif packet_type == SUBSCRIBE:
        packet = decode_subscribe(&c, level)
    elif packet_type == SUBACK:
        packet = decode_suback(&c, level)
    elif packet_type == UNSUBSCRIBE:
        packet = decode_unsubscribe(&c, level)
    elif packet_type == UNSUBACK:
        packet = decode_unsuback(&c, level)
    elif packet_type == PINGREQ:
        packet = Pingreq.__new__(Pingreq)
    elif packet_type == PINGRESP:
        packet = Pingresp.__new__(Pingresp)
    else:
        packet = decode_goodbye(&c, packet_type, level)
    if c.p != c.end:
        raise MalformedPacket(f"{TYPE_NAMES[packet_type]}: {c.end - c.p} bytes too many")
    return packet


cdef object decode_frame(uint8_t first_byte, Cursor* c, uint32_t remaining, int header_size, int level):
    """The packet whose body of `remaining` bytes starts at `c`; steps over it."""
    cdef object packet = decode_body(first_byte, c.p, remaining, level)
    if isinstance(packet, Connect):
        level = (<Connect>packet).protocol_level
    if level == 5 and header_size != 1 + varint_size(remaining):
        raise MalformedPacket("the Remaining Length takes more bytes than it needs [5: MQTT-1.5.5-1]")
    c.p += remaining
    return packet


def decode(data not None, int level=4):
    """The packet in `data` (bytes-like), which is exactly one frame of a connection at protocol `level` (3, 4 or 5).

    A CONNECT names its level itself. Raises MalformedPacket, with a reason and a reason code,
    if the bytes violate the standard, as section 4.8 requires [MQTT-4.8.0-1].
    """
    cdef bytes frame = data if type(data) is bytes else bytes(data)
    cdef uint8_t first_byte = 0
    cdef uint32_t remaining = 0
    cdef Cursor c
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(frame)
    check_level(level)
    c.p = start
    c.end = start + PyBytes_GET_SIZE(frame)
    if read_header(&c, &first_byte, &remaining) != 1:
        raise MalformedPacket("the fixed header is cut short, or its length takes more than four bytes [2.2.3]")
    if remaining != c.end - c.p:
        raise MalformedPacket(f"the Remaining Length is {remaining}, but {c.end - c.p} bytes follow [2.2.3]")
    return decode_frame(first_byte, &c, remaining, <int>(c.p - start), level)


@cython.final
cdef class Decoder:
    """Splits a stream into packets, for clients and tests; the broker parses its buffers itself.

    `level` is the connection's protocol level (3, 4 or 5) and follows the first CONNECT that passes;
    `max_packet_size` limits a whole frame, in bytes, and thereby the memory kept between two calls.
    """

    cdef readonly int level
    cdef readonly Py_ssize_t max_packet_size
    cdef bytearray tail               # the frame that is not yet complete; empty between frames
    cdef Py_ssize_t needed            # length of `tail` from which parsing it is worthwhile
    cdef object error                 # the first error: after it the stream has no frame borders

    def __init__(self, level=4, max_packet_size=VARINT_MAX + 5):
        check_level(level)
        self.level = level
        self.max_packet_size = max_packet_size
        self.tail = bytearray()
        self.needed = 0
        self.error = None

    def feed(self, data not None):
        """The packets that `data` (bytes-like) completes, in order; any bytes left over wait for the next call.

        Raises MalformedPacket, then and at every later call; its `packets` are those decoded before it in `data`.
        """
        cdef list packets = []
        if self.error is not None:
            raise type(self.error)(f"after an earlier error: {self.error}")
        try:
            if self.tail:
                self.tail += data
                if len(self.tail) >= self.needed:
                    del self.tail[:self.split(
                        <const uint8_t*>PyByteArray_AS_STRING(self.tail), PyByteArray_GET_SIZE(self.tail), packets
                    )]
            else:
                self.feed_whole(data if type(data) is bytes else bytes(data), packets)
        except MalformedPacket as error:
            self.error = error
            self.tail = bytearray()
            error.packets = packets
            raise
        return packets

    cdef object feed_whole(self, bytes data, list packets):
        """The common case: `tail` is empty, so frames are read in place."""
        cdef Py_ssize_t used = self.split(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), packets)
        if used < PyBytes_GET_SIZE(data):
            self.tail += data[used:]

    cdef Py_ssize_t split(self, const uint8_t* data, Py_ssize_t n, list packets) except -1:
        """Append the packets of the complete frames in `n` bytes to `packets`; returns the bytes of these frames."""
        cdef uint8_t first_byte = 0
        cdef uint32_t remaining = 0
        cdef const uint8_t* start
        cdef int found
        cdef Cursor c
        c.p = data
        c.end = data + n
        while True:
            start = c.p
            found = read_header(&c, &first_byte, &remaining)
            if found == -1:
                raise MalformedPacket("the Remaining Length takes more than four bytes [2.2.3]")
            if found == 0:
                self.needed = c.end - start + 1
                return start - data
            if c.p - start + remaining > self.max_packet_size:
                raise PacketTooLarge(f"a packet of {c.p - start + remaining} bytes; {self.max_packet_size} are allowed")
            if remaining > c.end - c.p:
                self.needed = c.p - start + remaining
                return start - data
            packet = decode_frame(first_byte, &c, remaining, <int>(c.p - start), self.level)
            if isinstance(packet, Connect):
                self.level = (<Connect>packet).protocol_level
            packets.append(packet)
