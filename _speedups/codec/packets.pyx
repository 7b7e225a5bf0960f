"""Owns: decode and encode of every MQTT control packet, protocol levels 3 (V3.1), 4 (V3.1.1) and 5.

Rules that hold here:
- Bytes in, packets out and back. No sockets, no clock, no configuration, no state but a Decoder's incomplete frame.
- A peer's fault is a MalformedPacket, which ends that peer's connection; our own fault is an InvalidPacket.
- What `encode` accepts, `decode` accepts at the same level.
- What a packet says is judged here, what it means to a session is not: a wildcard in the wrong place of a topic
  filter, an empty client id or an unknown topic alias pass.
- Level 3 is lenient where the V3.1 text marks bits as unused, level 4 and 5 are exact.

    ValueError
    +-- InvalidPacket              encode was given what the wire cannot carry
    +-- MalformedPacket            decode was given what the standard forbids; .reason, .code
        +-- ProtocolError          each part is well-formed, the whole is not allowed
            +-- UnacceptableProtocol   CONNECT of a protocol name or level we do not speak
            +-- PacketTooLarge         longer than the Decoder's limit

Statements are numbered as in 3.1.1; a number of level 5 is marked "5:".
"""

from collections import namedtuple

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memcpy

from _speedups.base.cursor cimport (
    VARINT_MAX, Cursor, read_field, read_header, read_u8, read_u16, read_u32, read_varint, varint_size, write_u16,
    write_varint,
)
from _speedups.codec.topics cimport (
    TOPIC_EMPTY, TOPIC_LEVELS_MAX, TopicFault, check_topic_name, check_utf8, fault_text,
)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL

# How many user properties one packet may carry: a limit of ours, since each becomes Python objects.
USER_PROPERTIES_MAX = 128


class InvalidPacket(ValueError):
    """A packet that cannot be put on the wire at this level: the caller's fault."""


class MalformedPacket(ValueError):
    """Bytes that break the standard: the peer's fault, its connection has to end.

    `reason` is for the log and names the statement; `code` is the reason code that a level-5 peer is sent.
    `packets` holds what Decoder.feed had decoded of the same bytes before.
    """

    packets = ()

    def __init__(self, reason, code=CODE_MALFORMED):
        super().__init__(reason)
        self.reason = reason
        self.code = code


class ProtocolError(MalformedPacket):
    """A well-formed packet that the standard does not allow."""

    def __init__(self, reason, code=CODE_PROTOCOL_ERROR):
        super().__init__(reason, code)


class UnacceptableProtocol(ProtocolError):
    """A CONNECT whose protocol name or level is not ours: answered with return code 1 [MQTT-3.1.2-2]."""

    def __init__(self, reason):
        super().__init__(reason, CODE_UNSUPPORTED_PROTOCOL)


class PacketTooLarge(ProtocolError):
    """A frame longer than the receiver is ready to hold."""

    def __init__(self, reason):
        super().__init__(reason, CODE_PACKET_TOO_LARGE)


# ---- tables ---------------------------------------------------------------------------------------------------------

CLIENT, SERVER, BOTH = "client", "server", "both"

# `flags`: the lower four bits of the first byte [MQTT-2.2.2-1], None where they mean something;
# `sender`: who may send it; `first_level`: the protocol level that brought it.
PacketType = namedtuple("PacketType", "packet_type name flags sender first_level")
PACKET_TYPES = (
    PacketType(CONNECT, "CONNECT", 0, CLIENT, 3),
    PacketType(CONNACK, "CONNACK", 0, SERVER, 3),
    PacketType(PUBLISH, "PUBLISH", None, BOTH, 3),
    PacketType(PUBACK, "PUBACK", 0, BOTH, 3),
    PacketType(PUBREC, "PUBREC", 0, BOTH, 3),
    PacketType(PUBREL, "PUBREL", 2, BOTH, 3),
    PacketType(PUBCOMP, "PUBCOMP", 0, BOTH, 3),
    PacketType(SUBSCRIBE, "SUBSCRIBE", 2, CLIENT, 3),
    PacketType(SUBACK, "SUBACK", 0, SERVER, 3),
    PacketType(UNSUBSCRIBE, "UNSUBSCRIBE", 2, CLIENT, 3),
    PacketType(UNSUBACK, "UNSUBACK", 0, SERVER, 3),
    PacketType(PINGREQ, "PINGREQ", 0, CLIENT, 3),
    PacketType(PINGRESP, "PINGRESP", 0, SERVER, 3),
    PacketType(DISCONNECT, "DISCONNECT", 0, BOTH, 3),
    PacketType(AUTH, "AUTH", 0, BOTH, 5),
)


def packets(*packet_types):
    """A bit for each packet type, WILL included: the set that a table row holds."""
    mask = 0
    for packet_type in packet_types:
        mask |= 1 << packet_type
    return mask


# Wire types of a property. BYTE only ever carries 0 or 1. A TOPIC is a STRING that has to be a topic name.
cdef enum WireType:
    ABSENT = 0
    BYTE
    TWO_BYTES
    FOUR_BYTES
    VARINT
    STRING
    BINARY
    PAIR
    TOPIC

cdef tuple ACKS = (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK)

# `packets`: where it may stand; `repeatable`: where more than once (its value is then a list);
# `zero_code`: the reason code that answers a value of 0, None where 0 is allowed.
Property = namedtuple("Property", "identifier name wire packets repeatable zero_code")
PROPERTIES = (
    Property(0x01, "payload_format_indicator", BYTE, packets(PUBLISH, WILL), 0, None),
    Property(0x02, "message_expiry_interval", FOUR_BYTES, packets(PUBLISH, WILL), 0, None),
    Property(0x03, "content_type", STRING, packets(PUBLISH, WILL), 0, None),
    Property(0x08, "response_topic", TOPIC, packets(PUBLISH, WILL), 0, None),
    Property(0x09, "correlation_data", BINARY, packets(PUBLISH, WILL), 0, None),
    Property(0x0B, "subscription_identifier", VARINT, packets(PUBLISH, SUBSCRIBE), packets(PUBLISH), 0x82),
    Property(0x11, "session_expiry_interval", FOUR_BYTES, packets(CONNECT, CONNACK, DISCONNECT), 0, None),
    Property(0x12, "assigned_client_identifier", STRING, packets(CONNACK), 0, None),
    Property(0x13, "server_keep_alive", TWO_BYTES, packets(CONNACK), 0, None),
    Property(0x15, "authentication_method", STRING, packets(CONNECT, CONNACK, AUTH), 0, None),
    Property(0x16, "authentication_data", BINARY, packets(CONNECT, CONNACK, AUTH), 0, None),
    Property(0x17, "request_problem_information", BYTE, packets(CONNECT), 0, None),
    Property(0x18, "will_delay_interval", FOUR_BYTES, packets(WILL), 0, None),
    Property(0x19, "request_response_information", BYTE, packets(CONNECT), 0, None),
    Property(0x1A, "response_information", STRING, packets(CONNACK), 0, None),
    Property(0x1C, "server_reference", STRING, packets(CONNACK, DISCONNECT), 0, None),
    Property(0x1F, "reason_string", STRING, packets(CONNACK, DISCONNECT, AUTH, *ACKS), 0, None),
    Property(0x21, "receive_maximum", TWO_BYTES, packets(CONNECT, CONNACK), 0, 0x82),
    Property(0x22, "topic_alias_maximum", TWO_BYTES, packets(CONNECT, CONNACK), 0, None),
    Property(0x23, "topic_alias", TWO_BYTES, packets(PUBLISH), 0, CODE_TOPIC_ALIAS_INVALID),
    Property(0x24, "maximum_qos", BYTE, packets(CONNACK), 0, None),
    Property(0x25, "retain_available", BYTE, packets(CONNACK), 0, None),
    Property(
        0x26, "user_property", PAIR,
        packets(CONNECT, CONNACK, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH, *ACKS),
        packets(CONNECT, CONNACK, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH, *ACKS), None,
    ),
    Property(0x27, "maximum_packet_size", FOUR_BYTES, packets(CONNECT, CONNACK), 0, 0x82),
    Property(0x28, "wildcard_subscription_available", BYTE, packets(CONNACK), 0, None),
    Property(0x29, "subscription_identifier_available", BYTE, packets(CONNACK), 0, None),
    Property(0x2A, "shared_subscription_available", BYTE, packets(CONNACK), 0, None),
)

# `packets`: the packets that may carry the code, section 2.4 of level 5.
ReasonCode = namedtuple("ReasonCode", "code name packets")
REASON_CODES = (
    ReasonCode(0x00, "Success", packets(CONNACK, DISCONNECT, AUTH, *ACKS)),
    ReasonCode(0x01, "Granted QoS 1", packets(SUBACK)),
    ReasonCode(0x02, "Granted QoS 2", packets(SUBACK)),
    ReasonCode(0x04, "Disconnect with Will Message", packets(DISCONNECT)),
    ReasonCode(0x10, "No matching subscribers", packets(PUBACK, PUBREC)),
    ReasonCode(0x11, "No subscription existed", packets(UNSUBACK)),
    ReasonCode(0x18, "Continue authentication", packets(AUTH)),
    ReasonCode(0x19, "Re-authenticate", packets(AUTH)),
    ReasonCode(0x80, "Unspecified error", packets(CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)),
    ReasonCode(0x81, "Malformed Packet", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x82, "Protocol Error", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x83, "Implementation specific error", packets(CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)),
    ReasonCode(0x84, "Unsupported Protocol Version", packets(CONNACK)),
    ReasonCode(0x85, "Client Identifier not valid", packets(CONNACK)),
    ReasonCode(0x86, "Bad User Name or Password", packets(CONNACK)),
    ReasonCode(0x87, "Not authorized", packets(CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)),
    ReasonCode(0x88, "Server unavailable", packets(CONNACK)),
    ReasonCode(0x89, "Server busy", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x8A, "Banned", packets(CONNACK)),
    ReasonCode(0x8B, "Server shutting down", packets(DISCONNECT)),
    ReasonCode(0x8C, "Bad authentication method", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x8D, "Keep Alive timeout", packets(DISCONNECT)),
    ReasonCode(0x8E, "Session taken over", packets(DISCONNECT)),
    ReasonCode(0x8F, "Topic Filter invalid", packets(SUBACK, UNSUBACK, DISCONNECT)),
    ReasonCode(0x90, "Topic Name invalid", packets(CONNACK, PUBACK, PUBREC, DISCONNECT)),
    ReasonCode(0x91, "Packet Identifier in use", packets(PUBACK, PUBREC, SUBACK, UNSUBACK)),
    ReasonCode(0x92, "Packet Identifier not found", packets(PUBREL, PUBCOMP)),
    ReasonCode(0x93, "Receive Maximum exceeded", packets(DISCONNECT)),
    ReasonCode(0x94, "Topic Alias invalid", packets(DISCONNECT)),
    ReasonCode(0x95, "Packet too large", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x96, "Message rate too high", packets(DISCONNECT)),
    ReasonCode(0x97, "Quota exceeded", packets(CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT)),
    ReasonCode(0x98, "Administrative action", packets(DISCONNECT)),
    ReasonCode(0x99, "Payload format invalid", packets(CONNACK, PUBACK, PUBREC, DISCONNECT)),
    ReasonCode(0x9A, "Retain not supported", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x9B, "QoS not supported", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x9C, "Use another server", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x9D, "Server moved", packets(CONNACK, DISCONNECT)),
    ReasonCode(0x9E, "Shared Subscriptions not supported", packets(SUBACK, DISCONNECT)),
    ReasonCode(0x9F, "Connection rate exceeded", packets(CONNACK, DISCONNECT)),
    ReasonCode(0xA0, "Maximum connect time", packets(DISCONNECT)),
    ReasonCode(0xA1, "Subscription Identifiers not supported", packets(SUBACK, DISCONNECT)),
    ReasonCode(0xA2, "Wildcard Subscriptions not supported", packets(SUBACK, DISCONNECT)),
)

cdef enum:
    RETURN_CODE_MAX = 5                # CONNACK at levels 3 and 4: "not authorized"
    ANY_FLAGS = 0xFF                   # in REQUIRED_FLAGS: they mean something

# The tables again, indexed for the C code; written once, here below.
cdef int[16] REQUIRED_FLAGS            # lower four bits of the first byte
cdef uint32_t[256] CODE_PACKETS        # packets that may carry this reason code
cdef list TYPE_NAMES = ["will properties"] + [row.name for row in PACKET_TYPES]
cdef dict PROPERTY_BY_IDENTIFIER = {row.identifier: row for row in PROPERTIES}
cdef dict PROPERTY_BY_NAME = {row.name: row for row in PROPERTIES}


cdef object index_tables():
    for row in PACKET_TYPES:
        REQUIRED_FLAGS[<int>row.packet_type] = ANY_FLAGS if row.flags is None else row.flags
    for row in REASON_CODES:
        CODE_PACKETS[<int>row.code] = row.packets


index_tables()


# ---- the packets ----------------------------------------------------------------------------------------------------


cdef class ControlPacket:
    """What all packets have: they compare and print by their `fields`."""

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.fields)

    def __repr__(self):
        """The packet as its constructor call. A password is hidden: a repr ends up in logs."""
        cdef list arguments = []
        for name in self.fields:
            value = getattr(self, name)
            hidden = name == "password" and value is not None
            arguments.append(f"{name}={'<hidden>' if hidden else repr(value)}")
        return f"{type(self).__name__}({', '.join(arguments)})"


cdef class Acknowledgement(ControlPacket):
    """What PUBACK, PUBREC, PUBREL and PUBCOMP have."""

    fields = ("packet_id", "reason_code", "properties")

    def __init__(self, packet_id, reason_code=0, properties=None):
        self.packet_id = packet_id
        self.reason_code = reason_code
        self.properties = properties or {}


@cython.final
cdef class Connect(ControlPacket):
    """A client asks for a connection. `will_topic` None means no will; `keep_alive` is in seconds. Section 3.1."""

    packet_type = CONNECT
    fields = (
        "client_id", "clean_start", "keep_alive", "username", "password", "will_topic", "will_payload", "will_qos",
        "will_retain", "will_properties", "properties", "protocol_level",
    )

    def __init__(
        self, client_id="", clean_start=True, keep_alive=60, username=None, password=None, will_topic=None,
        will_payload=b"", will_qos=0, will_retain=False, will_properties=None, properties=None, protocol_level=4,
    ):
        self.client_id = client_id
        self.clean_start = clean_start
        self.keep_alive = keep_alive
        self.username = username
        self.password = password
        self.will_topic = will_topic
        self.will_payload = will_payload
        self.will_qos = will_qos
        self.will_retain = will_retain
        self.will_properties = will_properties or {}
        self.properties = properties or {}
        self.protocol_level = protocol_level


@cython.final
cdef class Connack(ControlPacket):
    """The broker's answer to CONNECT. `reason_code` is the return code of levels 3 and 4. Section 3.2."""

    packet_type = CONNACK
    fields = ("session_present", "reason_code", "properties")

    def __init__(self, session_present=False, reason_code=0, properties=None):
        self.session_present = session_present
        self.reason_code = reason_code
        self.properties = properties or {}


@cython.final
cdef class Publish(ControlPacket):
    """An application message. `packet_id` is 0, and not sent, where `qos` is 0. Section 3.3."""

    packet_type = PUBLISH
    fields = ("topic_name", "payload", "qos", "retain", "dup", "packet_id", "properties")

    def __init__(self, topic_name, payload=b"", qos=0, retain=False, dup=False, packet_id=0, properties=None):
        self.topic_name = topic_name
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties or {}


@cython.final
cdef class Puback(Acknowledgement):
    """The answer to a PUBLISH of QoS 1. Section 3.4."""

    packet_type = PUBACK


@cython.final
cdef class Pubrec(Acknowledgement):
    """The answer to a PUBLISH of QoS 2. Section 3.5."""

    packet_type = PUBREC


@cython.final
cdef class Pubrel(Acknowledgement):
    """The answer to PUBREC. Section 3.6."""

    packet_type = PUBREL


@cython.final
cdef class Pubcomp(Acknowledgement):
    """The answer to PUBREL. Section 3.7."""

    packet_type = PUBCOMP


@cython.final
cdef class Subscribe(ControlPacket):
    """A client asks for subscriptions: `topic_filters` is a list of (topic filter, QoS).

    At level 5 the second of a pair is the whole options byte, of which QoS is the lower two bits. Section 3.8.
    """

    packet_type = SUBSCRIBE
    fields = ("packet_id", "topic_filters", "properties")

    def __init__(self, packet_id, topic_filters, properties=None):
        self.packet_id = packet_id
        self.topic_filters = topic_filters
        self.properties = properties or {}


@cython.final
cdef class Suback(ControlPacket):
    """The answer to SUBSCRIBE: a granted QoS, or 0x80 and more for a failure, per topic filter. Section 3.9."""

    packet_type = SUBACK
    fields = ("packet_id", "reason_codes", "properties")

    def __init__(self, packet_id, reason_codes, properties=None):
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = properties or {}


@cython.final
cdef class Unsubscribe(ControlPacket):
    """A client ends subscriptions: `topic_filters` is a list of str. Section 3.10."""

    packet_type = UNSUBSCRIBE
    fields = ("packet_id", "topic_filters", "properties")

    def __init__(self, packet_id, topic_filters, properties=None):
        self.packet_id = packet_id
        self.topic_filters = topic_filters
        self.properties = properties or {}


@cython.final
cdef class Unsuback(ControlPacket):
    """The answer to UNSUBSCRIBE; `reason_codes` stays empty below level 5. Section 3.11."""

    packet_type = UNSUBACK
    fields = ("packet_id", "reason_codes", "properties")

    def __init__(self, packet_id, reason_codes=None, properties=None):
        self.packet_id = packet_id
        self.reason_codes = reason_codes or []
        self.properties = properties or {}


@cython.final
cdef class Pingreq(ControlPacket):
    """A client says that it is alive. Section 3.12."""

    packet_type = PINGREQ
    fields = ()


@cython.final
cdef class Pingresp(ControlPacket):
    """The answer to PINGREQ. Section 3.13."""

    packet_type = PINGRESP
    fields = ()


@cython.final
cdef class Disconnect(ControlPacket):
    """The sender closes the connection on purpose; only a client may below level 5. Section 3.14."""

    packet_type = DISCONNECT
    fields = ("reason_code", "properties")

    def __init__(self, reason_code=0, properties=None):
        self.reason_code = reason_code
        self.properties = properties or {}


@cython.final
cdef class Auth(ControlPacket):
    """A step of an extended authentication, level 5. Section 5: 3.15."""

    packet_type = AUTH
    fields = ("reason_code", "properties")

    def __init__(self, reason_code=0, properties=None):
        self.reason_code = reason_code
        self.properties = properties or {}


Packet = (
    Connect | Connack | Publish | Puback | Pubrec | Pubrel | Pubcomp | Subscribe | Suback | Unsubscribe | Unsuback
    | Pingreq | Pingresp | Disconnect | Auth
)


# ---- decode: fields -------------------------------------------------------------------------------------------------

cdef object short_body(int packet_type, str field):
    """The error for a body that ends before or within `field`. To be raised by the caller, as with all such helpers:
    the C compiler then sees that what was not read is not used."""
    return MalformedPacket(f"{TYPE_NAMES[packet_type]}: the body ends before its {field} does")


cdef str decode_text(Cursor* c, int packet_type, str field):
    """A UTF-8 string [MQTT-1.5.3-1] [MQTT-1.5.3-2]. A leading BOM stays a character [MQTT-1.5.3-3]."""
    cdef const uint8_t* p
    cdef Py_ssize_t n
    if read_field(c, &p, &n) == -1:
        raise short_body(packet_type, field)
    if check_utf8(p, n):
        raise MalformedPacket(
            f"{TYPE_NAMES[packet_type]}: {field} is not well-formed UTF-8 or holds U+0000 [MQTT-1.5.3-1] [MQTT-1.5.3-2]"
        )
    return PyUnicode_DecodeUTF8(<const char*>p, n, NULL)


cdef bytes decode_binary(Cursor* c, int packet_type, str field):
    cdef const uint8_t* p
    cdef Py_ssize_t n
    if read_field(c, &p, &n) == -1:
        raise short_body(packet_type, field)
    return PyBytes_FromStringAndSize(<const char*>p, n)


cdef str decode_topic_name(Cursor* c, int packet_type, str field, int level, bint may_be_empty):
    cdef const uint8_t* p
    cdef Py_ssize_t n
    cdef int fault
    if read_field(c, &p, &n) == -1:
        raise short_body(packet_type, field)
    fault = check_topic_name(p, n, level, TOPIC_LEVELS_MAX)
    if fault and not (may_be_empty and fault == TopicFault.TOPIC_EMPTY):
        raise MalformedPacket(
            f"{TYPE_NAMES[packet_type]}: {field}: {fault_text(fault)}",
            CODE_MALFORMED if fault == TopicFault.TOPIC_BAD_UTF8 else CODE_TOPIC_NAME_INVALID,
        )
    return PyUnicode_DecodeUTF8(<const char*>p, n, NULL)


cdef str decode_topic_filter(Cursor* c, int packet_type):
    """A topic filter. Its wildcards are not judged here: the broker answers a wrong one in SUBACK."""
    cdef str topic_filter = decode_text(c, packet_type, "topic filter")
    if not topic_filter:
        raise MalformedPacket(f"{TYPE_NAMES[packet_type]}: a topic filter is empty [MQTT-4.7.3-1]")
    return topic_filter


cdef int decode_packet_id(Cursor* c, int packet_type) except -1:
    cdef uint16_t packet_id
    if read_u16(c, &packet_id) == -1:
        raise short_body(packet_type, "packet identifier")
    if packet_id == 0:
        raise MalformedPacket(f"{TYPE_NAMES[packet_type]}: the packet identifier is 0 [MQTT-2.3.1-1]")
    return packet_id


cdef int decode_reason_code(Cursor* c, int packet_type) except -1:
    """A reason code of level 5 that this packet may carry."""
    cdef uint8_t code
    if read_u8(c, &code) == -1:
        raise short_body(packet_type, "reason code")
    if not CODE_PACKETS[code] >> packet_type & 1:
        raise MalformedPacket(f"{TYPE_NAMES[packet_type]}: it cannot carry reason code 0x{code:02X}")
    return code


cdef list decode_reason_codes(Cursor* c, int packet_type):
    """The reason codes that fill the rest of a body; at least one."""
    cdef list codes = []
    if c.p == c.end:
        raise short_body(packet_type, "reason codes")
    while c.p < c.end:
        codes.append(decode_reason_code(c, packet_type))
    return codes


cdef uint32_t decode_varint(Cursor* c, int packet_type, str field) except? 0xFFFFFFFF:
    """A variable byte integer of level 5, which must have its shortest form [5: MQTT-1.5.5-1]."""
    cdef const uint8_t* start = c.p
    cdef uint32_t value
    if read_varint(c, &value) == -1 or c.p - start != varint_size(value):
        raise MalformedPacket(
            f"{TYPE_NAMES[packet_type]}: {field} is cut short, or takes more bytes than it needs [MQTT-1.5.5-1]"
        )
    return value


cdef object decode_value(Cursor* c, object row, int packet_type):
    """The value of a property, by the wire type of its row."""
    cdef int wire = row.wire
    cdef uint8_t u8
    cdef uint16_t u16
    cdef uint32_t u32
    cdef object value
    if wire == STRING:
        return decode_text(c, packet_type, row.name)
    if wire == TOPIC:
        return decode_topic_name(c, packet_type, row.name, 5, False)
    if wire == BINARY:
        return decode_binary(c, packet_type, row.name)
    if wire == PAIR:
        return decode_text(c, packet_type, row.name), decode_text(c, packet_type, row.name)
    if wire == BYTE:
        if read_u8(c, &u8) == -1:
            raise short_body(packet_type, row.name)
        if u8 > 1:
            raise ProtocolError(f"{TYPE_NAMES[packet_type]}: {row.name} is neither 0 nor 1")
        value = u8
    elif wire == TWO_BYTES:
        if read_u16(c, &u16) == -1:
            raise short_body(packet_type, row.name)
        value = u16
    elif wire == FOUR_BYTES:
        if read_u32(c, &u32) == -1:
            raise short_body(packet_type, row.name)
        value = u32
    else:
        value = decode_varint(c, packet_type, row.name)
    if row.zero_code is not None and value == 0:
        raise ProtocolError(f"{TYPE_NAMES[packet_type]}: {row.name} is 0", row.zero_code)
    return value


cdef dict decode_properties(Cursor* c, int packet_type, int owner):
    """The property block of level 5, by PROPERTIES: name -> value, or -> list of values where it may repeat.

    `owner` is the packet type, or WILL for the will properties inside a CONNECT.
    """
    cdef uint32_t size = decode_varint(c, packet_type, "property length")
    cdef uint32_t identifier
    cdef uint32_t here = <uint32_t>1 << owner
    cdef dict properties = {}
    cdef int user_properties = 0
    cdef Cursor block
    if size > c.end - c.p:
        raise short_body(packet_type, "properties")
    block.p = c.p
    block.end = c.p + size
    c.p = block.end
    while block.p < block.end:
        identifier = decode_varint(&block, packet_type, "property identifier")
        row = PROPERTY_BY_IDENTIFIER.get(identifier)
        if row is None or not row.packets & here:
            raise MalformedPacket(
                f"{TYPE_NAMES[packet_type]}: property 0x{identifier:02X} has no place here [5: 2.2.2.2]"
            )
        value = decode_value(&block, row, packet_type)
        if row.repeatable & here:
            if row.wire == PAIR:
                user_properties += 1
                if user_properties > USER_PROPERTIES_MAX:
                    raise ProtocolError(
                        f"{TYPE_NAMES[packet_type]}: more than {USER_PROPERTIES_MAX} user properties",
                        CODE_QUOTA_EXCEEDED,
                    )
            properties.setdefault(row.name, []).append(value)
        elif row.name in properties:
            raise ProtocolError(f"{TYPE_NAMES[packet_type]}: property {row.name} stands twice")
        else:
            properties[row.name] = value
    if "authentication_data" in properties and "authentication_method" not in properties:
        raise ProtocolError(f"{TYPE_NAMES[packet_type]}: authentication data without a method")
    return properties


# ---- decode: packets ------------------------------------------------------------------------------------------------


cdef object refuse_flags(int packet_type, str statement):
    return MalformedPacket(f"{TYPE_NAMES[packet_type]}: reserved flags are not as required [{statement}]")


cdef int decode_protocol_level(Cursor* c) except -1:
    """The protocol name and level that open a CONNECT, which decide about all that follows."""
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
    if level != 3 if n == 6 else (level != 4 and level != 5):
        raise UnacceptableProtocol(f"CONNECT: protocol level {level} is not supported [MQTT-3.1.2-2]")
    return level


cdef Connect decode_connect(Cursor* c, uint8_t first_byte):
    cdef Connect packet = Connect.__new__(Connect)
    cdef uint8_t flags
    cdef uint16_t keep_alive
    cdef int level = decode_protocol_level(c)
    packet.protocol_level = level
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
    # Bytes, not text, at every level: V3.1 too publishes what follows the two length bytes.
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
            raise MalformedPacket("SUBSCRIBE: requested QoS is 3, or reserved bits are set [MQTT-3.8.3-4]")
        if options & 0x30 == 0x30:
            raise ProtocolError("SUBSCRIBE: Retain Handling is 3 [5: 3.8.3.1]")
        if options & 0x04 and topic_filter.startswith("$share/"):
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
    """DISCONNECT and AUTH: at level 5 a reason code and properties, each of which may be left out."""
    cdef int code = 0
    cdef dict properties = {}
    if level == 5 and c.p < c.end:
        code = decode_reason_code(c, packet_type)
        if c.p < c.end:
            properties = decode_properties(c, packet_type, packet_type)
    return Disconnect(code, properties) if packet_type == DISCONNECT else Auth(code, properties)


cdef object decode_body(uint8_t first_byte, const uint8_t* body, Py_ssize_t n, int level):
    """The packet of one frame: its first byte, and `n` bytes after the fixed header at `body`.

    `level` is the connection's protocol level (3, 4 or 5); a CONNECT brings its own. Raises MalformedPacket.
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

    The level of a CONNECT is the one it names itself. Raises MalformedPacket, with a reason and a reason code,
    if the bytes break the standard, as section 4.8 asks [MQTT-4.8.0-1].
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


cdef object check_level(int level):
    if not 3 <= level <= 5:
        raise ValueError(f"protocol level is 3, 4 or 5, not {level}")


@cython.final
cdef class Decoder:
    """Cuts a stream into packets, for clients and tests; the broker has its own way through its buffers.

    `level` is the connection's protocol level (3, 4 or 5) and follows the first CONNECT that passes;
    `max_packet_size` limits a whole frame, in bytes, and so what is kept between two calls.
    """

    cdef readonly int level
    cdef readonly Py_ssize_t max_packet_size
    cdef bytearray tail               # the frame that is not yet complete; empty between frames
    cdef Py_ssize_t needed            # how long `tail` has to be before a look at it is worth while
    cdef object error                 # the first error: a stream without frame borders has no second

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
        """The common case: nothing is left from before, so frames are read where they are."""
        cdef Py_ssize_t used = self.split(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), packets)
        if used < PyBytes_GET_SIZE(data):
            self.tail += data[used:]

    cdef Py_ssize_t split(self, const uint8_t* data, Py_ssize_t n, list packets) except -1:
        """Append the packets of the whole frames in `n` bytes to `packets`; returns the bytes they take."""
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


# ---- encode ---------------------------------------------------------------------------------------------------------
# PUBLISH and the acknowledgements write straight into the frame. The rest is rare and joins pieces.


cdef object invalid(int packet_type, str reason):
    return InvalidPacket(f"{TYPE_NAMES[packet_type]}: {reason}")


cdef bytes number(int packet_type, str field, object value, int size):
    """An unsigned integer in `size` bytes."""
    if not isinstance(value, int) or value < 0 or value.bit_length() > 8 * size:
        raise invalid(packet_type, f"{field} {value!r} does not fit {size} bytes")
    return value.to_bytes(size, "big")


cdef bytes binary(int packet_type, str field, object value):
    """A two-byte length and the bytes."""
    if not isinstance(value, bytes) or len(value) > 65535:
        raise invalid(packet_type, f"{field} has to be at most 65535 bytes")
    return number(packet_type, field, len(value), 2) + value


cdef bytes text(int packet_type, str field, object value):
    """A UTF-8 string [MQTT-1.5.3-1] [MQTT-1.5.3-2]."""
    cdef bytes data
    if not isinstance(value, str):
        raise invalid(packet_type, f"{field} has to be a string, not {value!r}")
    data = value.encode("utf-8", "surrogatepass")
    if check_utf8(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)):
        raise invalid(packet_type, f"{field} holds U+0000 or a lone surrogate")
    return binary(packet_type, field, data)


cdef bytes topic(int packet_type, str field, object value, int level):
    """A string that is a topic name."""
    cdef bytes data = text(packet_type, field, value)
    cdef int fault = check_topic_name(
        <const uint8_t*>PyBytes_AS_STRING(data) + 2, PyBytes_GET_SIZE(data) - 2, level, TOPIC_LEVELS_MAX
    )
    if fault:
        raise invalid(packet_type, f"{field}: {fault_text(fault)}")
    return data


cdef bytes varint(int packet_type, str field, object value):
    cdef uint8_t[4] data
    if not isinstance(value, int) or not 0 <= value <= VARINT_MAX:
        raise invalid(packet_type, f"{field} {value!r} does not fit a variable byte integer")
    return PyBytes_FromStringAndSize(<char*>data, write_varint(data, value))


cdef bytes packet_id_bytes(int packet_type, int packet_id):
    if packet_id == 0:
        raise invalid(packet_type, "the packet identifier is 0 [MQTT-2.3.1-1]")
    return number(packet_type, "packet identifier", packet_id, 2)


cdef bytes reason_code_bytes(int packet_type, object code):
    """A reason code of level 5."""
    if not isinstance(code, int) or not 0 <= code <= 255 or not CODE_PACKETS[<int>code] >> packet_type & 1:
        raise invalid(packet_type, f"it cannot carry reason code {code!r}")
    return bytes((code,))


cdef bytes value_bytes(int packet_type, object row, object value):
    """The value of a property, by the wire type of its row; the inverse of decode_value."""
    cdef int wire = row.wire
    if row.zero_code is not None and value == 0:
        raise invalid(packet_type, f"{row.name} is 0")
    if wire == STRING:
        return text(packet_type, row.name, value)
    if wire == TOPIC:
        return topic(packet_type, row.name, value, 5)
    if wire == BINARY:
        return binary(packet_type, row.name, value)
    if wire == PAIR:
        if not isinstance(value, tuple) or len(value) != 2:
            raise invalid(packet_type, f"{row.name} has to be a list of pairs")
        return text(packet_type, row.name, value[0]) + text(packet_type, row.name, value[1])
    if wire == VARINT:
        return varint(packet_type, row.name, value)
    if wire == TWO_BYTES:
        return number(packet_type, row.name, value, 2)
    if wire == FOUR_BYTES:
        return number(packet_type, row.name, value, 4)
    if value != 0 and value != 1:
        raise invalid(packet_type, f"{row.name} is neither 0 nor 1")
    return number(packet_type, row.name, value, 1)


cdef bytes encode_properties(int packet_type, int owner, dict properties):
    """The property block of level 5, its length included; the inverse of decode_properties."""
    cdef list pieces = []
    cdef bytes block
    for name, value in properties.items():
        row = PROPERTY_BY_NAME.get(name)
        if row is None or not row.packets >> owner & 1:
            raise invalid(packet_type, f"property {name!r} has no place in its {'will' if owner == WILL else 'packet'}")
        values = value if row.repeatable >> owner & 1 else [value]
        if not isinstance(values, list) or (row.wire == PAIR and len(values) > USER_PROPERTIES_MAX):
            raise invalid(packet_type, f"{name} has to be a list, of at most {USER_PROPERTIES_MAX} user properties")
        for one in values:
            pieces.append(bytes((row.identifier,)))
            pieces.append(value_bytes(packet_type, row, one))
    if "authentication_data" in properties and "authentication_method" not in properties:
        raise invalid(packet_type, "authentication data without a method")
    block = b"".join(pieces)
    return varint(packet_type, "property length", len(block)) + block


cdef bytes frame(int packet_type, list pieces):
    """The frame of a packet whose body is `pieces`, one after the other."""
    cdef bytes body = b"".join(pieces)
    return (
        bytes((packet_type << 4 | REQUIRED_FLAGS[packet_type],))
        + varint(packet_type, "Remaining Length", len(body))
        + body
    )


cdef bytes encode_connect(Connect packet):
    cdef int level = packet.protocol_level
    cdef int flags = 0
    cdef list pieces = []
    if not 3 <= level <= 5:
        raise invalid(CONNECT, f"protocol level {level} is not 3, 4 or 5")
    if packet.clean_start:
        flags |= 0x02
    if packet.will_topic is not None:
        if not 0 <= packet.will_qos <= 2:
            raise invalid(CONNECT, f"Will QoS is {packet.will_qos} [MQTT-3.1.2-14]")
        flags |= 0x04 | packet.will_qos << 3 | packet.will_retain << 5
    if packet.username is not None:
        flags |= 0x80
    if packet.password is not None:
        if packet.username is None and level < 5:
            raise invalid(CONNECT, "a password without a user name [MQTT-3.1.2-22]")
        flags |= 0x40
    pieces.append(b"\x00\x06MQIsdp" if level == 3 else b"\x00\x04MQTT")
    pieces.append(bytes((level, flags)))
    pieces.append(number(CONNECT, "keep alive", packet.keep_alive, 2))
    if level == 5:
        pieces.append(encode_properties(CONNECT, CONNECT, packet.properties))
    pieces.append(text(CONNECT, "client identifier", packet.client_id))
    if packet.will_topic is not None:
        if level == 5:
            pieces.append(encode_properties(CONNECT, WILL, packet.will_properties))
        pieces.append(topic(CONNECT, "will topic", packet.will_topic, level))
        pieces.append(binary(CONNECT, "will message", packet.will_payload))
    if packet.username is not None:
        pieces.append(text(CONNECT, "user name", packet.username))
    if packet.password is not None:
        pieces.append(binary(CONNECT, "password", packet.password))
    return frame(CONNECT, pieces)


cdef bytes encode_connack(Connack packet, int level):
    if packet.session_present and packet.reason_code:
        raise invalid(CONNACK, "a refused connection has no session present [MQTT-3.2.2-4]")
    if level == 5:
        return frame(CONNACK, [
            bytes((packet.session_present,)), reason_code_bytes(CONNACK, packet.reason_code),
            encode_properties(CONNACK, CONNACK, packet.properties),
        ])
    if not 0 <= packet.reason_code <= RETURN_CODE_MAX:
        raise invalid(CONNACK, f"return code {packet.reason_code} is not one of levels 3 and 4")
    return frame(CONNACK, [bytes((packet.session_present and level > 3, packet.reason_code))])


cdef bytes encode_publish(Publish packet, int level):
    """Written in one pass: this is what a load generator does all day."""
    cdef bytes properties = b""
    cdef Py_ssize_t topic_size, payload_size
    cdef Py_ssize_t remaining
    cdef const char* topic_name
    cdef int fault
    cdef bytes result
    cdef uint8_t* p
    if not 0 <= packet.qos <= 2:
        raise invalid(PUBLISH, f"QoS is {packet.qos} [MQTT-3.3.1-4]")
    if packet.dup and not packet.qos:
        raise invalid(PUBLISH, "DUP is set although QoS is 0 [MQTT-3.3.1-2]")
    if packet.qos and not 1 <= packet.packet_id <= 65535:
        raise invalid(PUBLISH, f"packet identifier {packet.packet_id} is not within 1 to 65535 [MQTT-2.3.1-1]")
    if packet.topic_name is None or packet.payload is None:
        raise invalid(PUBLISH, "topic name and payload have to be there")
    try:
        topic_name = PyUnicode_AsUTF8AndSize(packet.topic_name, &topic_size)
    except UnicodeEncodeError:
        raise InvalidPacket("PUBLISH: topic name holds a lone surrogate [MQTT-1.5.3-1]") from None
    fault = check_topic_name(<const uint8_t*>topic_name, topic_size, level, TOPIC_LEVELS_MAX)
    if fault and not (fault == TopicFault.TOPIC_EMPTY and level == 5 and "topic_alias" in packet.properties):
        raise invalid(PUBLISH, f"topic name: {fault_text(fault)}")
    if level == 5:
        properties = encode_properties(PUBLISH, PUBLISH, packet.properties)
    payload_size = PyBytes_GET_SIZE(packet.payload)
    remaining = 2 + topic_size + (2 if packet.qos else 0) + PyBytes_GET_SIZE(properties) + payload_size
    if remaining > VARINT_MAX:
        raise invalid(PUBLISH, f"{remaining} bytes are too many; a packet holds {VARINT_MAX}")
    result = PyBytes_FromStringAndSize(NULL, 1 + varint_size(<uint32_t>remaining) + remaining)
    p = <uint8_t*>PyBytes_AS_STRING(result)
    p[0] = <uint8_t>(PUBLISH << 4 | packet.dup << 3 | packet.qos << 1 | packet.retain)
    p += 1
    p += write_varint(p, <uint32_t>remaining)
    write_u16(p, <uint16_t>topic_size)
    p += 2
    memcpy(p, topic_name, topic_size)
    p += topic_size
    if packet.qos:
        write_u16(p, <uint16_t>packet.packet_id)
        p += 2
    memcpy(p, PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))
    p += PyBytes_GET_SIZE(properties)
    memcpy(p, PyBytes_AS_STRING(packet.payload), payload_size)
    return result


cdef bytes encode_ack(Acknowledgement packet, int packet_type, int level):
    """The four acknowledgements of PUBLISH. What follows the packet identifier is left out where it says nothing."""
    cdef uint8_t[4] data
    cdef list pieces
    if packet.reason_code == 0 and (level < 5 or not packet.properties):
        if not 1 <= packet.packet_id <= 65535:
            raise invalid(packet_type, f"packet identifier {packet.packet_id} is not within 1 to 65535 [MQTT-2.3.1-1]")
        data[0] = <uint8_t>(packet_type << 4 | REQUIRED_FLAGS[packet_type])
        data[1] = 2
        write_u16(&data[2], <uint16_t>packet.packet_id)
        return PyBytes_FromStringAndSize(<char*>data, 4)
    if level < 5:
        raise invalid(packet_type, f"level {level} cannot carry reason code {packet.reason_code}")
    pieces = [packet_id_bytes(packet_type, packet.packet_id), reason_code_bytes(packet_type, packet.reason_code)]
    if packet.properties:
        pieces.append(encode_properties(packet_type, packet_type, packet.properties))
    return frame(packet_type, pieces)


cdef bytes encode_subscribe(Subscribe packet, int level):
    cdef list pieces = [packet_id_bytes(SUBSCRIBE, packet.packet_id)]
    if level == 5:
        pieces.append(encode_properties(SUBSCRIBE, SUBSCRIBE, packet.properties))
    if not packet.topic_filters:
        raise invalid(SUBSCRIBE, "there is no topic filter [MQTT-3.8.3-3]")
    for topic_filter, options in packet.topic_filters:
        if not topic_filter:
            raise invalid(SUBSCRIBE, "a topic filter is empty [MQTT-4.7.3-1]")
        if not 0 <= options <= (0x2E if level == 5 else 2) or options & 3 == 3:
            raise invalid(SUBSCRIBE, f"{options} is not a QoS, or not the options of a subscription [MQTT-3.8.3-4]")
        if options & 4 and topic_filter.startswith("$share/"):
            raise invalid(SUBSCRIBE, "No Local on a shared subscription [5: MQTT-3.8.3-4]")
        pieces.append(text(SUBSCRIBE, "topic filter", topic_filter))
        pieces.append(bytes((options,)))
    return frame(SUBSCRIBE, pieces)


cdef bytes encode_suback(Suback packet, int level):
    cdef list pieces = [packet_id_bytes(SUBACK, packet.packet_id)]
    if not packet.reason_codes:
        raise invalid(SUBACK, "there is no return code [MQTT-3.8.4-5]")
    if level == 5:
        pieces.append(encode_properties(SUBACK, SUBACK, packet.properties))
    for code in packet.reason_codes:
        # Level 3 has no failure: its receiver would take 0x80 for a granted QoS 0.
        if level < 5 and code not in (0, 1, 2) and (level == 3 or code != 0x80):
            raise invalid(SUBACK, f"level {level} has no return code {code!r} [MQTT-3.9.3-2]")
        pieces.append(reason_code_bytes(SUBACK, code))
    return frame(SUBACK, pieces)


cdef bytes encode_unsubscribe(Unsubscribe packet, int level):
    cdef list pieces = [packet_id_bytes(UNSUBSCRIBE, packet.packet_id)]
    if level == 5:
        pieces.append(encode_properties(UNSUBSCRIBE, UNSUBSCRIBE, packet.properties))
    if not packet.topic_filters:
        raise invalid(UNSUBSCRIBE, "there is no topic filter [MQTT-3.10.3-2]")
    for topic_filter in packet.topic_filters:
        if not topic_filter:
            raise invalid(UNSUBSCRIBE, "a topic filter is empty [MQTT-4.7.3-1]")
        pieces.append(text(UNSUBSCRIBE, "topic filter", topic_filter))
    return frame(UNSUBSCRIBE, pieces)


cdef bytes encode_unsuback(Unsuback packet, int level):
    cdef list pieces = [packet_id_bytes(UNSUBACK, packet.packet_id)]
    if level == 5:
        pieces.append(encode_properties(UNSUBACK, UNSUBACK, packet.properties))
        if not packet.reason_codes:
            raise invalid(UNSUBACK, "there is no reason code [5: MQTT-3.11.3-1]")
        for code in packet.reason_codes:
            pieces.append(reason_code_bytes(UNSUBACK, code))
    return frame(UNSUBACK, pieces)


cdef bytes encode_goodbye(int packet_type, int reason_code, dict properties, int level):
    """DISCONNECT and AUTH; the inverse of decode_goodbye."""
    if level < 5 and (reason_code or packet_type == AUTH):
        raise invalid(packet_type, f"level {level} has no such packet, or no reason code in it")
    if level < 5 or not (reason_code or properties):
        return frame(packet_type, [])
    return frame(packet_type, [
        reason_code_bytes(packet_type, reason_code),
        encode_properties(packet_type, packet_type, properties) if properties else b"",
    ])


cpdef bytes encode(object packet, int level=4):
    """The frame of `packet` for a connection at protocol `level` (3, 4 or 5); a CONNECT brings its own level.

    Properties are left out below level 5, where there is no place for them. Raises InvalidPacket if a field does
    not fit or would make the receiver refuse the packet.
    """
    check_level(level)
    if isinstance(packet, Publish):
        return encode_publish(packet, level)
    if isinstance(packet, Acknowledgement):
        return encode_ack(packet, packet.packet_type, level)
    if isinstance(packet, Connect):
        return encode_connect(packet)
    if isinstance(packet, Connack):
        return encode_connack(packet, level)
    if isinstance(packet, Subscribe):
        return encode_subscribe(packet, level)
    if isinstance(packet, Suback):
        return encode_suback(packet, level)
    if isinstance(packet, Unsubscribe):
        return encode_unsubscribe(packet, level)
    if isinstance(packet, Unsuback):
        return encode_unsuback(packet, level)
    if isinstance(packet, Pingreq):
        return frame(PINGREQ, [])
    if isinstance(packet, Pingresp):
        return frame(PINGRESP, [])
    if isinstance(packet, Disconnect):
        return encode_goodbye(DISCONNECT, (<Disconnect>packet).reason_code, (<Disconnect>packet).properties, level)
    if isinstance(packet, Auth):
        return encode_goodbye(AUTH, (<Auth>packet).reason_code, (<Auth>packet).properties, level)
    raise InvalidPacket(f"not a packet: {packet!r}")
