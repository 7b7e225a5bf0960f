"""From packets to bytes, protocol levels 3, 4 and 5. All that `encode` accepts, `decode` accepts at the same level.

PUBLISH and the acknowledgements are written directly to the frame. Other packets are rare and join pieces.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from ..base.cursor cimport VARINT_MAX, write_u16
from .fields cimport (
    binary, check_level, invalid, number, packet_id_bytes, reason_code_bytes, text, topic, varint,
)
from .packets cimport (
    BRIDGE_BIT, Acknowledgement, Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, Publish, Suback, Subscribe,
    Unsuback, Unsubscribe,
)
from .properties cimport encode_properties
from .publish cimport PUBLISH_QOS_0, publish_size, write_publish
from .tables cimport (
    AUTH, CONNACK, CONNECT, DISCONNECT, PINGREQ, PINGRESP, PUBLISH, REQUIRED_FLAGS, RETURN_CODE_MAX, SUBACK, SUBSCRIBE,
    UNSUBACK, UNSUBSCRIBE, WILL,
)
from .topics cimport TOPIC_LEVELS_MAX, TopicFault, check_topic_name, fault_text, is_shared

from .errors import InvalidPacket

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL


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
    pieces.append(bytes((level | BRIDGE_BIT if packet.bridge and level < 5 else level, flags)))
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
    """PUBLISH, written in one pass: it is most of a load generator's work."""
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
    result = PyBytes_FromStringAndSize(NULL, publish_size(<uint32_t>remaining))
    p = write_publish(
        <uint8_t*>PyBytes_AS_STRING(result),
        <uint8_t>(PUBLISH_QOS_0 | packet.dup << 3 | packet.qos << 1 | packet.retain), <uint32_t>remaining,
        <const uint8_t*>topic_name, topic_size, <uint16_t>packet.packet_id,
        <const uint8_t*>PyBytes_AS_STRING(packet.payload), payload_size)
    memcpy(p, PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))
    return result


cdef bytes encode_ack(Acknowledgement packet, int packet_type, int level):
    """The four acknowledgements of PUBLISH. Reason code and properties are omitted where they have default values."""
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
        if options & 4 and is_shared(topic_filter):
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
        # Level 3 has no failure code: its receiver would read 0x80 as a granted QoS 0.
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
    """The frame of `packet` for a connection at protocol `level` (3, 4 or 5); a CONNECT names its own level.

    Properties are omitted below level 5, whose packets have none. Raises InvalidPacket if a field does not fit or
    would make the receiver refuse the packet.
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
