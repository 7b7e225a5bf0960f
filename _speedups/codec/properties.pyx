"""The property block of level 5: decoded, encoded, and checked without Python objects, by the table PROPERTIES.

`decode_properties` and `encode_properties` serve the packets that become Python objects. `scan_properties` serves all
others: it checks a block once, at the entry, and the block then travels as raw bytes.
"""

from libc.limits cimport INT_MAX
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from ..base.cursor cimport Cursor, read_field, read_u8, read_u16, read_u32, read_varint, varint_size
from .fields cimport (
    binary, decode_binary, decode_text, decode_topic_name, decode_varint, invalid, number, short_body, text, topic,
    varint,
)
from .publish cimport MESSAGE_EXPIRY_INTERVAL, TOPIC_ALIAS
from .tables cimport (
    ABSENT, BINARY, BYTE, CODE_MALFORMED, CODE_PROTOCOL_ERROR, CODE_QUOTA_EXCEEDED, CODE_TOPIC_NAME_INVALID, FOUR_BYTES,
    PAIR, PUBLISH, STRING, TOPIC, TWO_BYTES, USER_PROPERTIES_LIMIT, VARINT, WILL,
)
from .topics cimport TOPIC_BAD_UTF8, TOPIC_LEVELS_MAX, check_topic_name, check_utf8

from .errors import MalformedPacket, ProtocolError
from .tables import PROPERTIES, TYPE_NAMES

USER_PROPERTIES_MAX = USER_PROPERTIES_LIMIT  # of one packet
cdef dict PROPERTY_BY_IDENTIFIER = {row.identifier: row for row in PROPERTIES}
cdef dict PROPERTY_BY_NAME = {row.name: row for row in PROPERTIES}


cdef enum:
    IDENTIFIERS = 64                  # more than the largest property identifier
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    MAXIMUM_PACKET_SIZE = 0x27
    PAYLOAD_FORMAT_INDICATOR = 0x01

# The table PROPERTIES by identifier, for `scan_properties`.
cdef struct PropertyRule:
    uint8_t wire                      # WireType; ABSENT: there is no such property
    uint8_t zero_code                 # reason code for a value of 0; 0 = the value is allowed
    uint32_t packets                  # packets that may have it, a bit each
    uint32_t repeatable               # packets that may repeat it

cdef PropertyRule[IDENTIFIERS] RULES


cdef object index_rules():
    for row in PROPERTIES:
        RULES[<int>row.identifier] = PropertyRule(row.wire, row.zero_code or 0, row.packets, row.repeatable)


cdef inline int scan_value(Cursor* c, const PropertyRule* rule, uint32_t* value) noexcept nogil:
    """Step over the value of a property, and check it. `value`: its number, if any. Returns 0 or a reason code."""
    cdef const uint8_t* at
    cdef const uint8_t* start = c.p
    cdef Py_ssize_t n
    cdef uint8_t u8
    cdef uint16_t u16
    cdef int fault
    if rule.wire >= STRING:
        if read_field(c, &at, &n) == -1:
            return CODE_MALFORMED
        if rule.wire == TOPIC:
            fault = check_topic_name(at, n, 5, TOPIC_LEVELS_MAX)
            if fault:
                return CODE_MALFORMED if fault == TOPIC_BAD_UTF8 else CODE_TOPIC_NAME_INVALID
        elif rule.wire != BINARY and check_utf8(at, n):
            return CODE_MALFORMED
        if rule.wire == PAIR and (read_field(c, &at, &n) == -1 or check_utf8(at, n)):
            return CODE_MALFORMED
        return 0
    if rule.wire == BYTE:
        if read_u8(c, &u8) == -1:
            return CODE_MALFORMED
        value[0] = u8
        if u8 > 1:
            return CODE_PROTOCOL_ERROR
    elif rule.wire == TWO_BYTES:
        if read_u16(c, &u16) == -1:
            return CODE_MALFORMED
        value[0] = u16
    elif rule.wire == FOUR_BYTES:
        if read_u32(c, value) == -1:
            return CODE_MALFORMED
    elif read_varint(c, value) == -1 or c.p - start != varint_size(value[0]):
        return CODE_MALFORMED
    return rule.zero_code if value[0] == 0 else 0


cdef int scan_properties(const uint8_t* block, Py_ssize_t n, int owner, PropertyScan* scan) noexcept nogil:
    """Check the `n` bytes of a property block, without its length, and note in `scan` what the packet path needs.

    `owner` is the packet type, or WILL. Returns 0, or the reason code of the first fault, as `decode_properties`
    raises it.
    """
    cdef Cursor c
    cdef const PropertyRule* rule
    cdef const uint8_t* start
    cdef uint64_t bit
    cdef uint32_t value = 0
    cdef int code
    scan[0] = PropertyScan(0, NULL, NULL, NULL, 0, 0, 0, 0, 0)
    c.p = block
    c.end = block + n
    while c.p < c.end:
        start = c.p
        scan.fault = start
        if start[0] >= IDENTIFIERS:
            return CODE_MALFORMED             # every identifier has one byte
        rule = &RULES[start[0]]
        if rule.wire == ABSENT or not rule.packets >> owner & 1:
            return CODE_MALFORMED
        c.p += 1
        code = scan_value(&c, rule, &value)
        if code:
            return code
        bit = <uint64_t>1 << start[0]
        if rule.repeatable >> owner & 1:
            if rule.wire == PAIR:
                scan.user_properties += 1
                if scan.user_properties > USER_PROPERTIES_LIMIT:
                    return CODE_QUOTA_EXCEEDED
        elif scan.seen & bit:
            return CODE_PROTOCOL_ERROR
        scan.seen |= bit
        if start[0] == MESSAGE_EXPIRY_INTERVAL:
            scan.expiry = start
            scan.expiry_interval = value
        elif start[0] == TOPIC_ALIAS:
            scan.alias = start
            scan.topic_alias = <uint16_t>value
        elif start[0] == PAYLOAD_FORMAT_INDICATOR:
            scan.payload_format = <uint8_t>value
        elif start[0] == MAXIMUM_PACKET_SIZE:
            scan.maximum_packet_size = value
    scan.fault = NULL
    if scan.seen >> AUTHENTICATION_DATA & 1 and not scan.seen >> AUTHENTICATION_METHOD & 1:
        scan.fault = block
        return CODE_PROTOCOL_ERROR
    return 0


cdef str property_fault(const PropertyScan* scan):
    """The fault that `scan_properties` found, in words."""
    cdef object row = PROPERTY_BY_IDENTIFIER.get(scan.fault[0])
    name = row.name if row is not None else hex(scan.fault[0])
    return f"property {name} is misplaced, repeated or malformed [5: 2.2.2.2]"


def check_properties(bytes block not None, int owner):
    """Check a property block, without its length.

    Args:
        block: its bytes.
        owner: the packet type, or 0 for will properties.

    Returns:
        (reason code or 0, identifiers that the block has, Message Expiry Interval or None, Topic Alias or None).
    """
    cdef PropertyScan scan
    cdef const uint8_t* p = block
    cdef int code = scan_properties(p, len(block), owner, &scan)
    return (
        code,
        [identifier for identifier in range(IDENTIFIERS) if scan.seen >> <int>identifier & 1],
        scan.expiry_interval if scan.expiry != NULL else None,
        scan.topic_alias if scan.alias != NULL else None,
    )


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


cdef dict decode_properties(Cursor* c, int packet_type, int owner, int most=USER_PROPERTIES_LIMIT):
    """The property block of level 5, by PROPERTIES: name -> value, or -> list of values where it may repeat.

    `owner` is the packet type, or WILL for the will properties inside a CONNECT. `most`: user properties.
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
                if user_properties > most:
                    raise ProtocolError(
                        f"{TYPE_NAMES[packet_type]}: more than {most} user properties",
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
        if not isinstance(values, list) or (row.wire == PAIR and len(values) > USER_PROPERTIES_LIMIT):
            raise invalid(packet_type, f"{name} has to be a list, of at most {USER_PROPERTIES_LIMIT} user properties")
        for one in values:
            pieces.append(bytes((row.identifier,)))
            pieces.append(value_bytes(packet_type, row, one))
    if "authentication_data" in properties and "authentication_method" not in properties:
        raise invalid(packet_type, "authentication data without a method")
    block = b"".join(pieces)
    return varint(packet_type, "property length", len(block)) + block


def encode_block(dict properties not None):
    """The property block of a PUBLISH, without its length, from a mapping as `Publish.properties`.

    Raises:
        InvalidPacket: it cannot be encoded.
    """
    cdef bytes block = encode_properties(PUBLISH, PUBLISH, properties)
    cdef Cursor c
    cdef uint32_t length = 0
    c.p = block
    c.end = c.p + len(block)
    read_varint(&c, &length)
    return c.p[:<Py_ssize_t>length]


def decode_block(bytes block not None):
    """The properties in a property block of a PUBLISH that has no length; the inverse of `encode_block`.

    It may have more user properties than a packet may: the broker adds some to the messages of streams.

    Raises:
        MalformedPacket: it is not a property block of a PUBLISH.
    """
    cdef bytes data = varint(PUBLISH, "property length", len(block)) + block
    cdef Cursor c
    c.p = data
    c.end = c.p + len(data)
    return decode_properties(&c, PUBLISH, PUBLISH, INT_MAX)


index_rules()
