"""The property block of level 5, decoded and encoded by the table PROPERTIES."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t

from _speedups.base.cursor cimport Cursor, read_u8, read_u16, read_u32
from _speedups.codec.fields cimport (
    binary, decode_binary, decode_text, decode_topic_name, decode_varint, invalid, number, short_body, text, topic,
    varint,
)
from _speedups.codec.tables cimport (
    BINARY, BYTE, CODE_QUOTA_EXCEEDED, FOUR_BYTES, PAIR, STRING, TOPIC, TWO_BYTES, USER_PROPERTIES_LIMIT, VARINT, WILL,
)

from _speedups.codec.errors import MalformedPacket, ProtocolError
from _speedups.codec.tables import PROPERTIES, TYPE_NAMES

USER_PROPERTIES_MAX = USER_PROPERTIES_LIMIT  # of one packet
cdef dict PROPERTY_BY_IDENTIFIER = {row.identifier: row for row in PROPERTIES}
cdef dict PROPERTY_BY_NAME = {row.name: row for row in PROPERTIES}


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
                if user_properties > USER_PROPERTIES_LIMIT:
                    raise ProtocolError(
                        f"{TYPE_NAMES[packet_type]}: more than {USER_PROPERTIES_LIMIT} user properties",
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
