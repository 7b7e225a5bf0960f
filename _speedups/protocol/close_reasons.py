"""Reasons for ending a connection: a sentence for logs, `ended` and DISCONNECT, and the reason code of level 5.

Each new reason is one line here. A reason with a number, or with the fault of a packet, stands where the fault is
detected (channel.pyx, codec/).
"""

from ..codec.reason_codes import ReasonCode as Code


class CloseReason(str):
    """Why a connection ends.

    Args:
        reason_code: of DISCONNECT to a client of level 5; None: it gets no DISCONNECT.
        sentence: the reason, in words.
        server_reference: other servers for the client, separated by spaces; empty = none [5: 4.11].
    """

    __slots__ = ("code", "server_reference")
    code: int | None
    server_reference: str

    def __new__(cls, reason_code: int | None, sentence: str, server_reference: str = "") -> "CloseReason":
        reason = super().__new__(cls, sentence)
        reason.code = reason_code
        reason.server_reference = server_reference
        return reason

    def leading_to(self, references: tuple[str, ...]) -> "CloseReason":
        """The same reason, as one that sends clients of level 5 to other servers; without references, itself."""
        return CloseReason(Code.USE_ANOTHER_SERVER, self, " ".join(references)) if references else self


# The client.
CLOSED_BY_CLIENT = CloseReason(None, "closed by the client")
DISCONNECTED = CloseReason(None, "disconnected by the client")
TAKEN_OVER = CloseReason(Code.SESSION_TAKEN_OVER, "taken over by a new connection with its client id")

# Time.
KEEP_ALIVE_TIMEOUT = CloseReason(Code.KEEP_ALIVE_TIMEOUT, "keep alive ran out [MQTT-3.1.2-24]")
CONNECT_TIMEOUT = CloseReason(None, "no CONNECT in time")
CONNECT_EVICTED = CloseReason(None, "no CONNECT, and others wait")
AUTH_TIMEOUT = CloseReason(None, "authentication took too long")
RE_AUTH_TIMEOUT = CloseReason(Code.KEEP_ALIVE_TIMEOUT, "authentication took too long")

# Limits and access.
UNTRUSTED_PROXY = CloseReason(None, "not from a trusted proxy")
TOO_MANY_FROM_ADDRESS = CloseReason(Code.QUOTA_EXCEEDED, "too many connections from its address")
TOO_MANY_SEARCHES = CloseReason(Code.QUOTA_EXCEEDED, "SUBSCRIBE again and again, without reading the retained messages")
RECEIVE_MAXIMUM_EXCEEDED = CloseReason(
    Code.RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged messages than the Receive Maximum allows [5: MQTT-3.3.4-7]"
)
TOO_MANY_UNRELEASED = CloseReason(Code.QUOTA_EXCEEDED, "too many QoS 2 messages wait for PUBREL")
CONNACK_TOO_LARGE = CloseReason(None, "its Maximum Packet Size has no room for CONNACK")
AUTH_TOO_LARGE = CloseReason(None, "its Maximum Packet Size has no room for AUTH")
SUBACK_TOO_LARGE = CloseReason(None, "its Maximum Packet Size has no room for SUBACK")
UNSUBACK_TOO_LARGE = CloseReason(None, "its Maximum Packet Size has no room for UNSUBACK")
QOS_NOT_SUPPORTED = CloseReason(Code.QOS_NOT_SUPPORTED, "PUBLISH with a QoS above mqtt.maximum_qos [5: MQTT-3.2.2-11]")
RETAIN_NOT_SUPPORTED = CloseReason(
    Code.RETAIN_NOT_SUPPORTED, "PUBLISH with RETAIN, and mqtt.retain_available is false [5: MQTT-3.2.2-14]"
)
CREDENTIALS_EXPIRED = CloseReason(Code.MAXIMUM_CONNECT_TIME, "its credentials have expired")
USER_REMOVED = CloseReason(Code.NOT_AUTHORIZED, "its user may not connect any more")
PASSWORD_CHANGED = CloseReason(Code.NOT_AUTHORIZED, "the password of its user has been changed")
ANOTHER_USER = CloseReason(Code.NOT_AUTHORIZED, "it authenticated again as another user")

# The protocol.
NOT_CONNECT = CloseReason(Code.PROTOCOL_ERROR, "the first packet is not CONNECT [MQTT-3.1.0-1]")
NOT_CONNECT_BUT_TLS = CloseReason(Code.PROTOCOL_ERROR, "the client begins TLS, and this listener is without TLS")
NOT_CONNECT_BUT_HTTP = CloseReason(Code.PROTOCOL_ERROR, "the client sends HTTP, and this listener is for MQTT")
NOT_CONNECT_BUT_PROXY = CloseReason(
    Code.PROTOCOL_ERROR, "the client sends a PROXY header, and only addresses of proxy.listen take one"
)
NOT_AUTH = CloseReason(Code.PROTOCOL_ERROR, "a packet other than AUTH before CONNACK [5: MQTT-3.1.2-30]")
NO_METHOD = CloseReason(
    Code.PROTOCOL_ERROR, "AUTH from a client that has named no authentication method [5: MQTT-4.12.0-7]"
)
AUTH_WITHOUT_METHOD = CloseReason(Code.PROTOCOL_ERROR, "AUTH without an authentication method [5: 3.15.2.2.2]")
AUTH_CODE = CloseReason(Code.PROTOCOL_ERROR, "AUTH with a reason code that only servers send [5: MQTT-3.15.2-1]")
AUTH_UNASKED = CloseReason(Code.PROTOCOL_ERROR, "AUTH that continues no authentication [5: MQTT-4.12.0-3]")
RE_AUTH_EARLY = CloseReason(Code.PROTOCOL_ERROR, "AUTH that authenticates again, before CONNACK [5: MQTT-4.12.1-1]")
RE_AUTH_TWICE = CloseReason(Code.PROTOCOL_ERROR, "AUTH that authenticates again, while another one is under way")
RE_AUTH_METHOD = CloseReason(
    Code.PROTOCOL_ERROR, "AUTH with another authentication method than CONNECT [5: MQTT-4.12.1-1]"
)
CONNECT_USER_NAME = CloseReason(
    Code.MALFORMED_PACKET, "CONNECT: a control character in the user name; mqtt.control_characters accepts them"
)
EXPIRY_AFTER_ZERO = CloseReason(
    Code.PROTOCOL_ERROR, "DISCONNECT with a session expiry, after CONNECT without one [5: 3.14.2.2.2]"
)
SECOND_CONNECT = CloseReason(Code.PROTOCOL_ERROR, "a second CONNECT [MQTT-3.1.0-2]")
REMAINING_LENGTH = CloseReason(Code.MALFORMED_PACKET, "the Remaining Length has more than four bytes [MQTT-2.2.3]")
PINGREQ_FORM = CloseReason(Code.MALFORMED_PACKET, "PINGREQ with flags or a body [MQTT-2.2.2-2]")
PUBLISH_QOS_3 = CloseReason(Code.MALFORMED_PACKET, "PUBLISH with QoS 3 [MQTT-3.3.1-4]")
PUBLISH_DUP = CloseReason(Code.MALFORMED_PACKET, "PUBLISH with QoS 0 and DUP [MQTT-3.3.1-2]")
PUBLISH_SHORT = CloseReason(Code.MALFORMED_PACKET, "PUBLISH is too short")
PUBLISH_TOPIC_LENGTH = CloseReason(Code.MALFORMED_PACKET, "the topic name of PUBLISH is longer than the packet")
PUBLISH_PACKET_ID = CloseReason(Code.PROTOCOL_ERROR, "PUBLISH with packet identifier 0 [MQTT-2.3.1-1]")
ACK_FLAGS = CloseReason(Code.MALFORMED_PACKET, "an acknowledgement with wrong flags [MQTT-2.2.2-2]")
ACK_SIZE = CloseReason(Code.MALFORMED_PACKET, "an acknowledgement that is not two bytes long")
ACK_PACKET_ID = CloseReason(Code.PROTOCOL_ERROR, "an acknowledgement with packet identifier 0 [MQTT-2.3.1-1]")
PUBLISH_NO_TOPIC = CloseReason(Code.PROTOCOL_ERROR, "PUBLISH without topic name or known alias [5: MQTT-3.3.2-7]")
PUBLISH_SUBSCRIPTION_IDENTIFIER = CloseReason(
    Code.PROTOCOL_ERROR, "PUBLISH from a client with a subscription identifier [5: MQTT-3.3.4-6]"
)
PUBLISH_PROPERTIES_LENGTH = CloseReason(Code.MALFORMED_PACKET, "the properties of PUBLISH are longer than the packet")
LENGTH_FORM = CloseReason(
    Code.MALFORMED_PACKET, "the Remaining Length takes more bytes than it needs [5: MQTT-1.5.5-1]"
)
ACK_REASON_CODE = CloseReason(Code.MALFORMED_PACKET, "an acknowledgement with a reason code that it can't carry")
ACK_STATE = CloseReason(Code.PROTOCOL_ERROR, "an acknowledgement that doesn't fit the QoS or the state of its PUBLISH")
PUBLISH_FAULTS = (  # by the numbers in incoming_publish.pxd
    None,
    PUBLISH_DUP,
    PUBLISH_SHORT,
    PUBLISH_TOPIC_LENGTH,
    PUBLISH_PACKET_ID,
    PUBLISH_PROPERTIES_LENGTH,
    LENGTH_FORM,
    PUBLISH_SUBSCRIPTION_IDENTIFIER,
    PUBLISH_NO_TOPIC,
)

# The operator, the node and the cluster.
ENDED_BY_OPERATOR = CloseReason(Code.ADMINISTRATIVE_ACTION, "ended by the operator")
KICKED_BY_OPERATOR = CloseReason(Code.ADMINISTRATIVE_ACTION, "kicked by the operator")
PURGED_BY_OPERATOR = CloseReason(Code.ADMINISTRATIVE_ACTION, "purged by the operator")
BROKER_STOPS = CloseReason(Code.SERVER_SHUTTING_DOWN, "the broker stops")
NODE_STOPS = CloseReason(Code.SERVER_SHUTTING_DOWN, "the node stops")
NODE_REJOINS = CloseReason(Code.SERVER_SHUTTING_DOWN, "the node rejoins the cluster")
SESSION_LOST = CloseReason(Code.SERVER_SHUTTING_DOWN, "Redis has lost its session")
CLAIM_REFUSED = CloseReason(Code.SERVER_SHUTTING_DOWN, "Redis refused the claim of its session")
SESSION_UNREADABLE = CloseReason(Code.UNSPECIFIED_ERROR, "its session is unreadable")
STORE_AWAY = CloseReason(Code.SERVER_BUSY, "the store did not take its transaction: send the packet again")
REDIS_AWAY = CloseReason(Code.SERVER_SHUTTING_DOWN, "Redis was unreachable while the session was read")
REDIS_AWAY_AT_CLAIM = CloseReason(Code.SERVER_SHUTTING_DOWN, "Redis went away while the session was claimed")

# Faults of the broker and its machine.
INTERNAL_ERROR = CloseReason(Code.UNSPECIFIED_ERROR, "a fault of the broker; see its log")
OUT_OF_MEMORY = CloseReason(Code.UNSPECIFIED_ERROR, "out of memory")
EPOLL_FAILED = CloseReason(Code.UNSPECIFIED_ERROR, "epoll failed")

PROXY_STARTS = (b"PROX", b"\r\n\r\n")  # of versions 1 and 2
HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI")


def not_connect(start: bytes) -> CloseReason:
    """The reason to close a connection that begins with these bytes, four at most, which are no CONNECT."""
    if start[:2] == b"\x16\x03":
        return NOT_CONNECT_BUT_TLS
    if start in PROXY_STARTS:
        return NOT_CONNECT_BUT_PROXY
    return NOT_CONNECT_BUT_HTTP if start in HTTP_METHODS else NOT_CONNECT
