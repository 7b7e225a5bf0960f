"""The metrics of a node, a row each: a new counter is a name in `flockmq._speedups.session.counters` and a row here.

$SYS topics, Prometheus and OpenTelemetry names are derived from the rows.
"""

from collections.abc import Callable
from typing import NamedTuple

from . import standard_error
from .broker import Broker
from .core.data_plane import DataPlane

Figures = dict[str, int]


class Metric(NamedTuple):
    """A metric of the node."""

    name: str
    kind: str  # "counter" only grows; "gauge" is the present value
    topic: str  # below $SYS/broker/
    help: str
    read: Callable[[Broker, Figures], float]


def counter(name: str, topic: str, help: str, *counters: str) -> Metric:  # noqa: A002
    """A sum of counters of the hot path (`flockmq._speedups.session.counters`)."""
    names = counters or (name,)
    return Metric(name, "counter", topic, help, lambda _, figures: sum(figures[n] for n in names))


def gauge(name: str, topic: str, help: str, read: Callable[[DataPlane], float]) -> Metric:  # noqa: A002
    """A value of the data plane that can be read at any time."""
    return Metric(name, "gauge", topic, help, lambda broker, _: read(broker.data_plane))


def node_gauge(name: str, topic: str, help: str, read: Callable[[Broker], float]) -> Metric:  # noqa: A002
    """Any other value of the node."""
    return Metric(name, "gauge", topic, help, lambda broker, _: read(broker))


DROPPED = (
    "dropped_slow",
    "dropped_unlinked",
    "dropped_queue_full",
    "expired",
    "too_large",
    "refused_by_receiver",
    "shared_discarded",
)

METRICS: tuple[Metric, ...] = (
    gauge(
        "clients_connected",
        "clients/connected",
        "Clients that are connected.",
        lambda d: d.sessions.connected,
    ),
    gauge(
        "clients_mqtt31",
        "clients/connected/mqtt31",
        "Connected clients with MQTT 3.1.",
        lambda d: d.sessions.connected_at[3],
    ),
    gauge(
        "clients_mqtt311",
        "clients/connected/mqtt311",
        "Connected clients with MQTT 3.1.1.",
        lambda d: d.sessions.connected_at[4],
    ),
    gauge(
        "clients_mqtt5",
        "clients/connected/mqtt5",
        "Connected clients with MQTT 5.0.",
        lambda d: d.sessions.connected_at[5],
    ),
    gauge(
        "clients_disconnected",
        "clients/disconnected",
        "Persistent sessions whose client is not at this node.",
        lambda d: d.sessions.count - d.sessions.connected,
    ),
    gauge("sessions", "clients/total", "Sessions, connected or not.", lambda d: d.sessions.count),
    gauge(
        "clients_maximum",
        "clients/maximum",
        "Most clients connected at a time.",
        lambda d: d.sessions.max_connected,
    ),
    gauge(
        "sessions_stuck",
        "clients/stuck",
        "Connected clients that have left a message unacknowledged for limits.stuck_after while others wait behind it.",
        lambda d: d.stuck_sessions.count,
    ),
    gauge("connections", "connections/open", "Open connections, before CONNECT too.", lambda d: len(d.reactor)),
    gauge(
        "subscriptions",
        "subscriptions/count",
        "Subscriptions of all sessions that the node has; in a cluster all persistent sessions are among them.",
        lambda d: d.router.filters.count,
    ),
    gauge(
        "subscription_bytes",
        "subscriptions/bytes",
        "Bytes of memory that subscriptions take.",
        lambda d: d.router.filters.size,
    ),
    node_gauge("streams", "subscriptions/streams", "Streams that clients read.", lambda broker: len(broker.streams)),
    Metric(
        "stream_missed_bytes",
        "counter",
        "subscriptions/streams/missed bytes",
        "Bytes of logs that were trimmed before streams had read them.",
        lambda broker, _: broker.streams.missed,
    ),
    gauge(
        "retained",
        "retained messages/count",
        "Retained messages, without $SYS.",
        lambda d: d.router.retained.count,
    ),
    gauge(
        "retained_bytes",
        "retained messages/bytes",
        "Bytes of memory that retained messages take.",
        lambda d: d.router.retained.size,
    ),
    gauge(
        "queued_messages",
        "queues/messages",
        "QoS 1 and 2 messages that clients have not acknowledged, sent or not.",
        lambda d: d.turn.queued,
    ),
    gauge(
        "queued_bytes",
        "queues/bytes",
        "Bytes of the topics and payloads of queued messages.",
        lambda d: d.turn.queued_bytes,
    ),
    gauge(
        "inflight_messages",
        "queues/in flight",
        "QoS 1 and 2 messages that are sent and not acknowledged.",
        lambda d: d.turn.inflight,
    ),
    node_gauge("ready", "ready", "1 while new clients are accepted.", lambda b: int(b.ready()[0])),
    node_gauge(
        "cluster_nodes",
        "cluster/nodes",
        "Nodes of the cluster, this one included.",
        lambda b: b.coordinator.nodes.count,
    ),
    node_gauge(
        "redis_connected",
        "cluster/redis connected",
        "1 while the cluster's Redis answers; of a node alone, always.",
        lambda b: int(b.coordinator.nodes.connected),
    ),
    gauge(
        "store_waiting_bytes",
        "store/waiting bytes",
        "Bytes given to the store and not yet confirmed.",
        lambda d: d.turn.uncommitted,
    ),
    node_gauge(
        "store_latency_seconds",
        "store/latency",
        "The longest that the store took to keep something, of the last 15 seconds.",
        lambda b: b.monitor.store_latency.read(),
    ),
    node_gauge(
        "loop_lag_seconds",
        "loop lag",
        "The longest that the node was busy when its clock was due, of the last 15 seconds.",
        lambda b: b.monitor.loop_lag.read(),
    ),
    gauge(
        "tls_certificate_expires",
        "tls/certificate expires",
        "When the first certificate expires, in seconds since 1970; 0 without TLS.",
        lambda d: d.reactor.certificate_expires,
    ),
    Metric(
        "log_lines_dropped",
        "counter",
        "log/lines dropped",
        "Lines of the log that were dropped: its reader or its disk was slow or away.",
        lambda *_: standard_error.dropped(),
    ),
    counter("bytes_received", "bytes/received", "Bytes read from clients."),
    counter("bytes_sent", "bytes/sent", "Bytes written to clients."),
    counter("packets_received", "messages/received", "Packets of any type from clients."),
    counter("packets_sent", "messages/sent", "Packets of any type to clients."),
    counter("publish_received", "publish/messages/received", "PUBLISH packets from clients."),
    counter("publish_sent", "publish/messages/sent", "PUBLISH packets to clients."),
    counter(
        "publish_dropped", "publish/messages/dropped", "Messages dropped for a receiver, for any reason.", *DROPPED
    ),
    counter(
        "dropped_slow", "publish/messages/dropped/slow", "QoS 0 messages dropped for receivers that read too slowly."
    ),
    counter(
        "dropped_unlinked",
        "publish/messages/dropped/unlinked",
        "QoS 0 messages for other nodes, dropped while this node was without Redis.",
    ),
    counter("dropped_queue_full", "publish/messages/dropped/queue full", "Messages dropped because a queue was full."),
    counter(
        "messages_expired",
        "publish/messages/dropped/expired",
        "Messages whose expiry interval had passed, by receiver; retained ones too.",
        "expired",
    ),
    counter(
        "messages_too_large",
        "publish/messages/dropped/too large",
        "Messages above the Maximum Packet Size of their receiver.",
        "too_large",
    ),
    counter(
        "messages_refused_by_receiver",
        "publish/messages/dropped/refused by receiver",
        "Messages that receivers refused in PUBACK or PUBREC.",
        "refused_by_receiver",
    ),
    gauge(
        "shared_groups",
        "shared subscriptions/count",
        "Shared subscriptions that the node knows.",
        lambda d: len(d.router.filters.groups),
    ),
    gauge(
        "shared_groups_unattended",
        "shared subscriptions/unattended",
        "Shared subscriptions without a connected subscriber at any node: their messages of QoS 1 and 2 wait.",
        lambda d: sum(not group.is_attended for group in d.router.filters.groups.values()),
    ),
    counter(
        "shared_accepted",
        "publish/messages/shared/accepted",
        "Messages of QoS 1 and 2 to shared subscriptions, counted where they were published.",
    ),
    counter(
        "shared_given",
        "publish/messages/shared/given",
        "Messages that shared subscriptions gave to one of their subscribers, QoS 1 and 2.",
    ),
    counter(
        "shared_returned",
        "publish/messages/shared/returned",
        "Messages of shared subscriptions that came back, and went to another subscriber.",
    ),
    counter(
        "shared_discarded",
        "publish/messages/shared/discarded",
        "Messages of shared subscriptions that no subscriber could get, or that had begun with QoS 2 when the "
        "session of their subscriber ended.",
    ),
    counter(
        "dead_letters",
        "publish/messages/shared/dead letters",
        "Messages of shared subscriptions that were sent `shared.max_deliveries` times without success; they went "
        "to `shared.dead_letter_topic`.",
    ),
    gauge(
        "delayed_messages",
        "delayed messages/count",
        "Messages to $delayed/SECONDS/TOPIC that wait; in a cluster those of all nodes.",
        lambda d: d.router.delayed.count,
    ),
    gauge("delayed_bytes", "delayed messages/bytes", "Bytes of delayed messages.", lambda d: d.router.delayed.size),
    gauge(
        "delayed_first_due_seconds",
        "delayed messages/first due",
        "Seconds until the first of them is due, negative if it is late; 0: none waits.",
        lambda d: d.router.delayed.first_due / 1000,
    ),
    counter("delayed_published", "delayed messages/published", "Delayed messages published by this node."),
    counter(
        "delayed_refused",
        "delayed messages/refused",
        "Messages to $delayed/... that were dropped: the topic is wrong, too many wait, or there are none here.",
    ),
    counter("transactions", "transactions/committed", "Transactions that clients have committed at this node."),
    counter("transaction_messages", "transactions/messages", "Messages of transactions published by this node."),
    Metric(
        "events_published",
        "counter",
        "publish/events/published",
        "Events of clients, published for subscribers.",
        lambda broker, _: broker.events.outbox.published,
    ),
    Metric(
        "events_suppressed",
        "counter",
        "publish/events/suppressed",
        "Events of clients that were only counted, because of events.rate.",
        lambda broker, _: broker.events.outbox.suppressed,
    ),
    Metric(
        "schema_mismatches",
        "counter",
        "publish/messages/schema mismatches",
        "Messages of clients that did not fit the schema of their topic: refused, marked or routed.",
        lambda broker, _: broker.schemas.mismatches.total(),
    ),
    Metric(
        "traced_messages",
        "counter",
        "traces/messages",
        "Messages from clients of which spans were made.",
        lambda broker, _: broker.traces.recorder.begun if broker.traces.recorder else 0,
    ),
    Metric(
        "trace_steps_dropped",
        "counter",
        "traces/steps dropped",
        "Steps of messages that were not recorded, because of traces.steps_per_second; a message left out counts once.",
        lambda broker, _: broker.traces.recorder.missed if broker.traces.recorder else 0,
    ),
    Metric(
        "spans_exported",
        "counter",
        "traces/spans exported",
        "Spans that the collector has taken.",
        lambda broker, _: broker.span_counts.exported,
    ),
    Metric(
        "spans_dropped",
        "counter",
        "traces/spans dropped",
        "Spans that the collector has not taken in time: it was slow or away.",
        lambda broker, _: broker.span_counts.dropped,
    ),
    counter("publish_unrouted", "publish/messages/unrouted", "Messages without a subscriber, without $SYS."),
    counter("publish_bytes_received", "publish/bytes/received", "Payload bytes from clients."),
    counter("publish_bytes_sent", "publish/bytes/sent", "Payload bytes to clients."),
    counter("redelivered", "publish/messages/redelivered", "PUBLISH packets sent again with DUP."),
    counter("connections_opened", "connections/opened", "Connections accepted from the network."),
    counter("connections_closed", "connections/closed", "Connections that have ended."),
    counter("connects_accepted", "connections/connects accepted", "CONNECT packets accepted."),
    counter("connects_refused", "connections/connects refused", "CONNECT packets refused."),
    counter("takeovers", "connections/takeovers", "Connections ended by another with the same client id."),
    counter("connect_timeouts", "connections/connect timeouts", "Connections that sent no CONNECT in time."),
    counter("keep_alive_timeouts", "connections/keep alive timeouts", "Connections closed by keep alive."),
    counter(
        "malformed_packets", "connections/malformed", "Connections ended because of a packet against the protocol."
    ),
    counter("accept_pauses", "connections/accept pauses", "Times that accepting paused at a limit."),
    counter("read_pauses", "connections/read pauses", "Times that a publisher waited for the store."),
    counter("subscribes_refused", "subscriptions/refused", "Filters refused in SUBSCRIBE."),
    counter("wills_published", "wills/published", "Wills published."),
    counter("commits", "store/commits", "Blocks given to the store."),
    counter("committed_bytes", "store/bytes", "Bytes of committed blocks."),
    counter("logged", "analytics/logged", "Messages that were logged."),
    counter(
        "not_logged",
        "analytics/not logged",
        "QoS 0 messages that were not: Redis or the disk was slow or away.",
    ),
    counter("publish_denied", "access/publish denied", "Messages from clients that may not publish to their topic."),
    counter("delivery_denied", "access/delivery denied", "Messages that were queued or retained and may not be read."),
    counter("subscribe_denied", "access/subscribe denied", "Filters refused because nothing of them may be read."),
    counter("auth_failures", "access/authentication failures", "CONNECT packets with wrong credentials."),
    Metric(
        "http_auth_failures",
        "counter",
        "access/http failures",
        "Wrong tokens received over HTTP.",
        lambda b, _: b.http_failures(),
    ),
    counter("connections_refused", "access/connections refused", "Connections closed at once, by a quota."),
    counter("flapping_refused", "access/flapping refused", "Connections of clients that connected too often."),
    counter("throttled", "access/throttled", "Times that a connection was read later because of its rate."),
    counter("tls_handshakes", "tls/handshakes", "TLS handshakes completed."),
    counter("tls_resumed", "tls/resumed", "TLS handshakes that resumed an earlier session of the client."),
    counter("tls_failures", "tls/failures", "TLS handshakes that failed."),
    counter("websocket_failures", "websocket/failures", "WebSocket handshakes refused and connections at fault."),
)

# Load averages: name below $SYS/broker/load/, counter.
LOADS = (
    ("messages/received", "packets_received"),
    ("messages/sent", "packets_sent"),
    ("publish/received", "publish_received"),
    ("publish/sent", "publish_sent"),
    ("bytes/received", "bytes_received"),
    ("bytes/sent", "bytes_sent"),
    ("connections", "connections_opened"),
    ("sockets", "connections_opened"),
)

# Names below $SYS/broker/ by which exporters for Mosquitto look for gauges, or sums of gauges, and the names of these.
SUMS = {
    "clients/active": ("clients_connected",),
    "clients/inactive": ("clients_disconnected",),
    "shared_subscriptions/count": ("shared_groups",),
    "messages/stored": ("retained", "queued_messages"),
    "store/messages/count": ("retained", "queued_messages"),
    "store/messages/bytes": ("retained_bytes", "queued_bytes"),
}

# Of each tenant at a node: name, kind, help; the names are as in `Tenant`.
TENANT_FIGURES = (
    ("connections", "gauge", "Connections of a tenant."),
    ("sessions", "gauge", "Its sessions, connected or not."),
    ("subscriptions", "gauge", "Its subscriptions."),
    ("subscription_bytes", "gauge", "Bytes of memory that subscriptions take."),
    ("retained", "gauge", "Its retained messages."),
    ("retained_bytes", "gauge", "Bytes of memory that retained messages take."),
    ("delayed", "gauge", "Its delayed messages that wait at this node."),
    ("queued_bytes", "gauge", "Bytes of messages in its queues; in a cluster those of all nodes."),
    ("received", "counter", "PUBLISH packets from its clients."),
    ("received_bytes", "counter", "Payload bytes from its clients."),
    ("sent", "counter", "PUBLISH packets to its clients."),
    ("sent_bytes", "counter", "Payload bytes to its clients."),
    ("dropped", "counter", "Its messages that a full queue or a slow client has lost."),
)
