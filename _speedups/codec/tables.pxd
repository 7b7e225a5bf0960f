# The tables as constants and arrays of C. See tables.pyx.

from libc.stdint cimport uint32_t

cdef enum:
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15                         # level 5; reserved below
    WILL = 0                          # stands for the will properties of CONNECT in place of a packet type

cdef enum:                            # reason codes of level 5 that compiled code sets
    CODE_UNSPECIFIED = 0x80            # from here on codes are failures
    CODE_MALFORMED = 0x81
    CODE_PROTOCOL_ERROR = 0x82
    CODE_UNSUPPORTED_PROTOCOL = 0x84
    CODE_NO_MATCHING_SUBSCRIBERS = 0x10
    CODE_NOT_AUTHORIZED = 0x87
    CODE_SERVER_UNAVAILABLE = 0x88
    CODE_SERVER_SHUTTING_DOWN = 0x8B
    CODE_TOPIC_NAME_INVALID = 0x90
    CODE_PACKET_IDENTIFIER_NOT_FOUND = 0x92
    CODE_TOPIC_ALIAS_INVALID = 0x94
    CODE_PACKET_TOO_LARGE = 0x95
    CODE_QUOTA_EXCEEDED = 0x97
    CODE_PAYLOAD_FORMAT_INVALID = 0x99

cdef enum:
    RETURN_CODE_MAX = 5               # CONNACK at levels 3 and 4: "not authorized"
    ANY_FLAGS = 0xFF                  # in REQUIRED_FLAGS: the flags carry a meaning
    USER_PROPERTIES_LIMIT = 128       # user properties of one packet: the broker's limit (Python objects)

# Wire types of a property. BYTE is 0 or 1. A TOPIC is a STRING that must be a topic name.
cpdef enum WireType:
    ABSENT = 0
    BYTE
    TWO_BYTES
    FOUR_BYTES
    VARINT
    STRING
    BINARY
    PAIR
    TOPIC

cdef int[16] REQUIRED_FLAGS           # lower four bits of the first byte, by packet type
cdef uint32_t[256] CODE_PACKETS       # packets that may carry this reason code, a bit each
