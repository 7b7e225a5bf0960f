"""The tables of the standard: packet types, properties, reason codes. A new property is one row here and one test case.

Statements are numbered as in 3.1.1; a number of level 5 is marked "5:".
"""

from collections import namedtuple

CLIENT, SERVER, BOTH = "client", "server", "both"

# `flags`: the lower four bits of the first byte [MQTT-2.2.2-1], None where they have a meaning;
# `sender`: the permitted sender; `first_level`: the first protocol level with the packet.
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


cdef tuple ACKS = (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK)

# `packets`: packets that may have it; `repeatable`: packets that may repeat it (its value is then a list);
# `zero_code`: the reason code for a value of 0, None where 0 is allowed.
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

# Names for error texts, by packet type; index 0 stands for the will properties.
TYPE_NAMES = ["will properties"] + [row.name for row in PACKET_TYPES]


cdef object index_tables():
    for row in PACKET_TYPES:
        REQUIRED_FLAGS[<int>row.packet_type] = ANY_FLAGS if row.flags is None else row.flags
    for row in REASON_CODES:
        CODE_PACKETS[<int>row.code] = row.packets


index_tables()
