# The packets as C structures.
#
# Every field is owned by its packet. Integers are plain `int` although the wire has less room, so that `encode` gets
# a wrong value and refuses it with a reason.

cdef enum:
    BRIDGE_BIT = 0x80          # of the protocol level of a CONNECT

cdef class ControlPacket:
    pass

cdef class Acknowledgement(ControlPacket):
    cdef public int packet_id
    cdef public int reason_code       # level 5
    cdef public dict properties

cdef class Connect(ControlPacket):
    cdef public int protocol_level    # 3, 4 or 5
    cdef public bint bridge           # the client is a bridge: the highest bit of the level, at levels 3 and 4
    cdef public str client_id
    cdef public bint clean_start      # the standard's Clean Session at levels 3 and 4
    cdef public int keep_alive        # seconds, 0 = off
    cdef public str will_topic        # None: no will, and the other will fields are ignored
    cdef public bytes will_payload
    cdef public int will_qos
    cdef public bint will_retain
    cdef public dict will_properties  # level 5
    cdef public str username          # None: the field is absent
    cdef public bytes password        # None: the field is absent
    cdef public dict properties       # level 5, property name -> value

cdef class Connack(ControlPacket):
    cdef public bint session_present  # level 4 and 5
    cdef public int reason_code       # the standard's return code at levels 3 and 4
    cdef public dict properties

cdef class Publish(ControlPacket):
    cdef public str topic_name
    cdef public bytes payload
    cdef public int qos
    cdef public bint retain
    cdef public bint dup
    cdef public int packet_id         # 0 where QoS is 0
    cdef public dict properties

cdef class Puback(Acknowledgement):
    pass

cdef class Pubrec(Acknowledgement):
    pass

cdef class Pubrel(Acknowledgement):
    pass

cdef class Pubcomp(Acknowledgement):
    pass

cdef class Subscribe(ControlPacket):
    cdef public int packet_id
    cdef public list topic_filters    # of (topic filter, QoS); at level 5 the whole options byte for the QoS
    cdef public dict properties

cdef class Suback(ControlPacket):
    cdef public int packet_id
    cdef public list reason_codes     # of int, one for each topic filter
    cdef public dict properties

cdef class Unsubscribe(ControlPacket):
    cdef public int packet_id
    cdef public list topic_filters    # of str
    cdef public dict properties

cdef class Unsuback(ControlPacket):
    cdef public int packet_id
    cdef public list reason_codes     # of int; empty below level 5
    cdef public dict properties

cdef class Pingreq(ControlPacket):
    pass

cdef class Pingresp(ControlPacket):
    pass

cdef class Disconnect(ControlPacket):
    cdef public int reason_code       # level 5
    cdef public dict properties

cdef class Auth(ControlPacket):
    cdef public int reason_code
    cdef public dict properties
