"""The data types of section 1.5 of the standard, both ways: integers, strings, binary data, topic names.

`decode_*` steps a cursor over a field and raises MalformedPacket; `encode_*` returns the bytes of a field and raises
InvalidPacket.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from ..base.cursor cimport (
    VARINT_MAX, Cursor, read_field, read_u8, read_u16, read_varint, varint_size, write_varint,
)
from .tables cimport CODE_MALFORMED, CODE_PACKETS, CODE_TOPIC_NAME_INVALID
from .topics cimport TOPIC_LEVELS_MAX, TopicFault, check_topic_name, check_utf8, fault_text

from .errors import InvalidPacket, MalformedPacket, ProtocolError
from .tables import TYPE_NAMES

cdef object check_level(int level):
    if not 3 <= level <= 5:
        raise ValueError(f"protocol level is 3, 4 or 5, not {level}")


cdef object short_body(int packet_type, str field):
    """The error for a body that ends before or within `field`. The caller raises it, as with all such helpers:
    the C compiler then sees that unread values are not used."""
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
    """A topic filter. Its wildcards are not checked here: the broker reports a wrong one in SUBACK."""
    cdef str topic_filter = decode_text(c, packet_type, "topic filter")
    if not topic_filter:
        raise MalformedPacket(f"{TYPE_NAMES[packet_type]}: a topic filter is empty [MQTT-4.7.3-1]")
    return topic_filter


cdef int decode_packet_id(Cursor* c, int packet_type) except -1:
    cdef uint16_t packet_id
    if read_u16(c, &packet_id) == -1:
        raise short_body(packet_type, "packet identifier")
    if packet_id == 0:
        raise ProtocolError(f"{TYPE_NAMES[packet_type]}: the packet identifier is 0 [MQTT-2.3.1-1]")
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
            f"{TYPE_NAMES[packet_type]}: {field} is cut short, or takes more bytes than it needs [5: MQTT-1.5.5-1]"
        )
    return value


# ---- encode ----


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
