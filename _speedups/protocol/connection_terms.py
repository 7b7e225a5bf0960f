"""The terms of a connection: the limits that a client and its node give each other with CONNECT and CONNACK."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ConnectionTerms:
    """The terms of one connection; the defaults are the terms of a client below level 5."""

    # The client's: for packets to it.
    maximum_packet_size: int = 0  # bytes of the largest packet that it takes; 0 = any
    receive_maximum: int = 65_535  # messages of QoS 1 and 2 that may be sent to it and not be acknowledged
    problem_information: bool = True  # it wants reason strings in acknowledgements
    topic_aliases: int = 0  # that may be set on messages to it [5: MQTT-3.1.2-26]
    bridge: bool = False  # it is a bridge, below level 5

    # The node's: for packets from the client.
    maximum_qos: int = 2  # of its messages; a PUBLISH with a higher QoS ends the connection
    retain_available: bool = True  # it may publish retained messages
    # It is a link of this node: the other broker limits the messages under way, and a message that is refused here
    # would be lost there.
    link: bool = False
