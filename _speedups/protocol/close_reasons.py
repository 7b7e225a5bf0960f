"""Reasons for closing a connection, as logs and `ended` report them. Each new reason is one line here.

A reason with a number, or with the fault of a packet, stands where the fault is detected (channel.pyx, codec/).
"""

# The client.
CLOSED_BY_CLIENT = "closed by the client"
DISCONNECTED = "disconnected by the client"
TAKEN_OVER = "taken over by a new connection with its client id"

# Time.
KEEP_ALIVE_TIMEOUT = "keep alive ran out [MQTT-3.1.2-24]"
CONNECT_TIMEOUT = "no CONNECT in time"
CONNECT_EVICTED = "no CONNECT, and others wait"

# Limits and access.
UNTRUSTED_PROXY = "not from a trusted proxy"
TOO_MANY_FROM_ADDRESS = "too many connections from its address"
TOO_MANY_SEARCHES = "SUBSCRIBE again and again, without reading the retained messages"
TOO_MANY_UNRELEASED = "too many QoS 2 messages wait for PUBREL"
CREDENTIALS_EXPIRED = "its credentials have expired"
USER_REMOVED = "its user may not connect any more"

# The protocol.
NOT_CONNECT = "the first packet is not CONNECT [MQTT-3.1.0-1]"
CONNECT_USER_NAME = "CONNECT: a control character in the user name; mqtt.control_characters accepts them"
SECOND_CONNECT = "a second CONNECT [MQTT-3.1.0-2]"
REMAINING_LENGTH = "the Remaining Length has more than four bytes [MQTT-2.2.3]"
PINGREQ_FORM = "PINGREQ with flags or a body [MQTT-2.2.2-2]"
PUBLISH_QOS_3 = "PUBLISH with QoS 3 [MQTT-3.3.1-4]"
PUBLISH_DUP = "PUBLISH with QoS 0 and DUP [MQTT-3.3.1-2]"
PUBLISH_SHORT = "PUBLISH is too short"
PUBLISH_TOPIC_LENGTH = "the topic name of PUBLISH is longer than the packet"
PUBLISH_PACKET_ID = "PUBLISH with packet identifier 0 [MQTT-2.3.1-1]"
ACK_FLAGS = "an acknowledgement with wrong flags [MQTT-2.2.2-2]"
ACK_SIZE = "an acknowledgement that is not two bytes long"
ACK_PACKET_ID = "an acknowledgement with packet identifier 0 [MQTT-2.3.1-1]"
ACK_STATE = "an acknowledgement that doesn't fit the QoS or the state of its PUBLISH"

# The operator, the node and the cluster.
ENDED_BY_OPERATOR = "ended by the operator"
KICKED_BY_OPERATOR = "kicked by the operator"
PURGED_BY_OPERATOR = "purged by the operator"
BROKER_STOPS = "the broker stops"
NODE_STOPS = "the node stops"
NODE_REJOINS = "the node rejoins the cluster"
SESSION_LOST = "Redis has lost its session"
CLAIM_REFUSED = "Redis refused the claim of its session"
SESSION_UNREADABLE = "its session is unreadable"
REDIS_AWAY = "Redis was unreachable while the session was read"
REDIS_AWAY_AT_CLAIM = "Redis went away while the session was claimed"

# Faults of the broker and its machine.
INTERNAL_ERROR = "a fault of the broker; see its log"
OUT_OF_MEMORY = "out of memory"
EPOLL_FAILED = "epoll failed"
