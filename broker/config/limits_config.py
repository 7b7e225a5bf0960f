"""The sections [limits] and [quotas]: bounds of the resources that clients use."""

from dataclasses import dataclass

from .kinds import Choice, Duration, Integer, PacketSize, Rate, Size
from .option import COUNT_MAX, DAY, MIB, SIZE_MAX, option


@dataclass(frozen=True)
class LimitsConfig:
    """Limits on the resources of one client, so that no client can exhaust the node."""

    max_packet_size: int = option(
        2 * MIB,
        "Bytes of the largest packet accepted, header included; a larger one ends its connection.",
        Size(128, 268_435_455 + 5),
        reloadable=True,
    )
    max_topic_levels: int = option(200, "Levels a topic name or filter may have.", Integer(1, 65_536), reloadable=True)
    max_inflight: int = option(
        100,
        "QoS 1 and 2 messages in flight to one session: sent and not yet acknowledged.",
        Integer(1, 65_535),
        reloadable=True,
    )
    receive_maximum: int = option(
        1024,
        "QoS 1 and 2 messages from one MQTT 5.0 client that are not yet acknowledged; it gets this limit in CONNACK.",
        Integer(1, 65_535),
        reloadable=True,
    )
    max_queued_messages: int = option(
        10_000, "QoS 1 and 2 messages that wait for one session.", Integer(1, COUNT_MAX), reloadable=True
    )
    max_queued_bytes: int = option(
        16 * MIB, "Bytes of the messages that wait for one session.", Size(1024, SIZE_MAX), reloadable=True
    )
    queue_policy: str = option(
        "drop-new",
        "Message to drop when the queue of a session is full: drop-new = the arriving one, drop-old = the oldest.",
        Choice(("drop-new", "drop-old")),
        reloadable=True,
    )
    stuck_after: float = option(
        60.0,
        "Seconds that a connected client may leave a message unacknowledged while others wait behind it; then its "
        "session is stuck: in the log, the metrics and the list of clients.",
        Duration(0.25, DAY),
        reloadable=True,
    )
    max_awaiting_release: int = option(
        65_535,
        "QoS 2 messages from one session that wait for its PUBREL; their bytes have a limit of max_queued_bytes, too.",
        Integer(1, 65_535),
        reloadable=True,
    )
    max_outgoing_bytes: int = option(
        4 * MIB,
        "Bytes a connection's peer has not read yet; above, QoS 0 is dropped and QoS 1 and 2 wait in the queue.",
        Size(1024, SIZE_MAX),
        reloadable=True,
    )
    max_connections: int = option(
        0, "Connections at a time; 0 = as many as file descriptors allow.", Integer(0, COUNT_MAX)
    )
    max_pending_connects: int = option(
        2000, "Connections that may be open without having sent CONNECT.", Integer(1, COUNT_MAX), reloadable=True
    )
    connect_timeout: float = option(
        10.0,
        "Seconds a new connection may take to send CONNECT, and AUTH if it authenticates in steps.",
        Duration(0.1, DAY),
        reloadable=True,
    )
    max_keep_alive: float = option(
        0.0,
        "Seconds; the longest keep alive: clients that ask for more, or for none, get this. 0 = no limit.",
        Duration(0, 65_535),
        reloadable=True,
    )
    max_sessions: int = option(
        1_000_000,
        "Sessions, connected or not; above, new client identifiers get return code 3.",
        Integer(1, COUNT_MAX),
        reloadable=True,
    )
    max_subscriptions: int = option(
        100_000,
        "Subscriptions of one session; above, filters are refused. A filter counts once more for each further 8 levels "
        "and each KiB.",
        Integer(1, COUNT_MAX),
        reloadable=True,
    )
    max_subscription_bytes: int = option(
        2048 * MIB,
        "Bytes of memory that all subscriptions of the node may take; above, filters are refused.",
        Size(0, SIZE_MAX),
        reloadable=True,
    )
    max_streams: int = option(
        16,
        "Streams ($stream/SINCE/FILTER) of one connection; above, filters are refused. 0 = clients read no streams.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    max_retained_messages: int = option(
        2_000_000,
        "Topic names with a retained message, without $SYS; above, messages for new ones are not retained.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    max_retained_bytes: int = option(
        1024 * MIB,
        "Bytes of memory that all retained messages take, with their topics; above, more are not retained.",
        Size(0, SIZE_MAX),
        reloadable=True,
    )
    max_delayed_messages: int = option(
        100_000,
        "Messages to $delayed/SECONDS/TOPIC that wait, and staged chunks of transactions, of all clients and nodes; "
        "above, they are refused. 0 = none is accepted.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    max_delayed_bytes: int = option(
        256 * MIB,
        "Bytes of delayed messages that wait; above, further ones are refused.",
        Size(0, SIZE_MAX),
        reloadable=True,
    )
    transaction_timeout: float = option(
        3600.0,
        "Seconds after which the staged messages of a part of a transaction are dropped, if it is not committed.",
        Duration(1, 30 * DAY),
        reloadable=True,
    )


@dataclass(frozen=True)
class QuotasConfig:
    """Quotas of clients. A client over its rate is read more slowly (TCP back-pressure); nothing is dropped."""

    max_connections: int = option(
        0,
        "Connections of a listener at a time; 0 = no limit but `limits.max_connections`.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    max_connections_per_address: int = option(
        0,
        "Connections from one IPv4 address or one IPv6 network (/64) at a time; 0 = no limit.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    connects_per_second: int = option(
        0,
        "Connections that a listener accepts in a second; more wait. 0 = no limit.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    messages_per_second: int = option(
        0,
        "PUBLISH packets that are read from one client in a second; 0 = no limit.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    bytes_per_second: int = option(
        0,
        "Bytes of packets that are read from one client in a second; 0 = no limit.",
        Size(0, SIZE_MAX),
        reloadable=True,
    )
    listener_messages_per_second: int = option(
        0,
        "PUBLISH packets that are read from all clients of a listener in a second; 0 = no limit.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    listener_bytes_per_second: int = option(
        0,
        "Bytes of packets that are read from all clients of a listener in a second; 0 = no limit.",
        Size(0, SIZE_MAX),
        reloadable=True,
    )
    max_packet_size: int = option(
        0,
        "Bytes of the largest packet that a listener accepts, header included; 0 = `limits.max_packet_size`, which is "
        "the limit in any case. An MQTT 5.0 client gets it in CONNACK.",
        PacketSize(128, 268_435_455 + 5),
        reloadable=True,
    )
    max_connections_per_user: int = option(
        0, "Connections of a user to this node at a time; 0 = no limit.", Integer(0, COUNT_MAX), reloadable=True
    )
    flapping: str = option(
        "",
        'How often a client may connect: "15 in 60 s"; above, it is refused for that time. Empty = no limit.',
        Rate(),
        reloadable=True,
    )
