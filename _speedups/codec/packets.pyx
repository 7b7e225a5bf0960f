"""The packets of MQTT, as objects. They hold fields; decode.pyx and encode.pyx validate them."""

cimport cython

from .tables cimport (
    AUTH, CONNACK, CONNECT, DISCONNECT, PINGREQ, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, SUBSCRIBE,
    UNSUBACK, UNSUBSCRIBE,
)


cdef class ControlPacket:
    """The base class of all packets, which compare and print by their `fields`."""

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.fields)

    def __repr__(self):
        """The packet as its constructor call. A password is hidden, because logs contain reprs."""
        cdef list arguments = []
        for name in self.fields:
            value = getattr(self, name)
            hidden = name == "password" and value is not None
            arguments.append(f"{name}={'<hidden>' if hidden else repr(value)}")
        return f"{type(self).__name__}({', '.join(arguments)})"


cdef class Acknowledgement(ControlPacket):
    """The base class of PUBACK, PUBREC, PUBREL and PUBCOMP."""

    fields = ("packet_id", "reason_code", "properties")

    def __init__(self, packet_id, reason_code=0, properties=None):
        self.packet_id = packet_id
        self.reason_code = reason_code
        self.properties = properties or {}


@cython.final
cdef class Connect(ControlPacket):
    """A client's request to connect. `will_topic` None means no will; `keep_alive` is in seconds. Section 3.1.

    `bridge`: the client is a bridge, which Mosquitto marks in the protocol level. It gets no message back that it has
    published, and messages with the RETAIN flag of their publisher. The constructor has all 13 fields of the packet, as
    the constructors of the other packets have: tables of cases and both ends build packets by the names of the fields.
    """

    packet_type = CONNECT
    fields = (
        "client_id", "clean_start", "keep_alive", "username", "password", "will_topic", "will_payload", "will_qos",
        "will_retain", "will_properties", "properties", "protocol_level", "bridge",
    )

    def __init__(
        self, client_id="", clean_start=True, keep_alive=60, username=None, password=None, will_topic=None,
        will_payload=b"", will_qos=0, will_retain=False, will_properties=None, properties=None, protocol_level=4,
        bridge=False,
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
        self.bridge = bridge


@cython.final
cdef class Connack(ControlPacket):
    """The broker's reply to CONNECT. `reason_code` is the return code of levels 3 and 4. Section 3.2."""

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
    """The reply to a PUBLISH of QoS 1. Section 3.4."""

    packet_type = PUBACK


@cython.final
cdef class Pubrec(Acknowledgement):
    """The reply to a PUBLISH of QoS 2. Section 3.5."""

    packet_type = PUBREC


@cython.final
cdef class Pubrel(Acknowledgement):
    """The reply to PUBREC. Section 3.6."""

    packet_type = PUBREL


@cython.final
cdef class Pubcomp(Acknowledgement):
    """The reply to PUBREL. Section 3.7."""

    packet_type = PUBCOMP


@cython.final
cdef class Subscribe(ControlPacket):
    """A client's request for subscriptions: `topic_filters` is a list of (topic filter, QoS).

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
    """The reply to SUBSCRIBE: a granted QoS, or 0x80 and more for a failure, per topic filter. Section 3.9."""

    packet_type = SUBACK
    fields = ("packet_id", "reason_codes", "properties")

    def __init__(self, packet_id, reason_codes, properties=None):
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = properties or {}


@cython.final
cdef class Unsubscribe(ControlPacket):
    """A client's request to end subscriptions: `topic_filters` is a list of str. Section 3.10."""

    packet_type = UNSUBSCRIBE
    fields = ("packet_id", "topic_filters", "properties")

    def __init__(self, packet_id, topic_filters, properties=None):
        self.packet_id = packet_id
        self.topic_filters = topic_filters
        self.properties = properties or {}


@cython.final
cdef class Unsuback(ControlPacket):
    """The reply to UNSUBSCRIBE; `reason_codes` is empty below level 5. Section 3.11."""

    packet_type = UNSUBACK
    fields = ("packet_id", "reason_codes", "properties")

    def __init__(self, packet_id, reason_codes=None, properties=None):
        self.packet_id = packet_id
        self.reason_codes = reason_codes or []
        self.properties = properties or {}


@cython.final
cdef class Pingreq(ControlPacket):
    """A client's sign of life. Section 3.12."""

    packet_type = PINGREQ
    fields = ()


@cython.final
cdef class Pingresp(ControlPacket):
    """The reply to PINGREQ. Section 3.13."""

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
