"""The Grafana dashboard, as a table: a panel is one row here. Prints dashboards/flockmq.json, which a test compares.

    python deploy/grafana/dashboard.py > deploy/grafana/dashboards/flockmq.json

Rules: every panel has a sentence on its content and its meaning; every figure has a unit; counters are shown as rates
over $interval; figures of a node carry its name, which only flockmq_info has.
"""

import json
import sys
from typing import Any, NamedTuple

WIDTH = 24  # Grafana's grid
COLORS = {"good": "green", "odd": "orange", "bad": "red"}


class Query(NamedTuple):
    """A line of a graph."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """A figure over time, or with `steps` a single number that takes their colours from these values on."""

    title: str
    unit: str  # Grafana's name of it
    description: str
    queries: tuple[Query, ...]
    steps: tuple[tuple[float | None, str], ...] = ()
    stacked: bool = False
    words: tuple[str, str] | None = None  # for 0 and 1


def by_node(expr: str, legend: str = "{{node}}") -> Query:
    """One line a node; the expression has one series for each instance and node."""
    return Query(f'({expr}) * on (instance, node) group_left () flockmq_info{{node=~"$node"}}', legend)


def whole(expr: str, legend: str = "", function: str = "sum") -> Query:
    """One line for all nodes that are chosen."""
    return Query(f"{function}({by_node(expr).expr})", legend)


def rate(counter: str) -> str:
    """How often a second."""
    return f"rate(flockmq_{counter}_total[$interval])"


def count_of(counter: str, legend: str = "") -> Query:
    """A counter of all nodes, a second."""
    return whole(rate(counter), legend)


def of_topics(figure: str) -> Query:
    """A counter of topic filters, of all nodes, a second: a line each."""
    return Query(f"sum by (filter) ({rate(f'topic_{figure}')})", "{{filter}}")


GOOD = ((None, "good"),)
GOOD_AT_0 = ((None, "good"), (1e-9, "bad"))
GOOD_AT_1 = ((None, "bad"), (1, "good"))

NOW = (
    Panel("Nodes ready", "none", "Nodes that accept clients.", (whole("flockmq_ready"),), GOOD_AT_1),
    Panel("Clients", "short", "Connected, to any node.", (whole("flockmq_clients_connected"),), GOOD),
    Panel("In", "mps", "PUBLISH packets from clients.", (count_of("publish_received"),), GOOD),
    Panel("Out", "mps", "PUBLISH packets to clients.", (count_of("publish_sent"),), GOOD),
    Panel(
        "Dropped",
        "mps",
        "Messages dropped for a receiver, for any reason. Investigate any value above 0.",
        (count_of("publish_dropped"),),
        GOOD_AT_0,
    ),
    Panel(
        "Redis",
        "none",
        "Whether every node reaches its Redis. A single node needs none, and counts as connected.",
        (whole("flockmq_redis_connected", function="min"),),
        GOOD_AT_1,
        words=("away", "connected"),
    ),
    Panel(
        "Loop lag",
        "s",
        "Longest delay of any node's loop in the last 15 s: clients waited that long.",
        (whole("flockmq_loop_lag_seconds", function="max"),),
        ((None, "good"), (0.1, "odd"), (0.25, "bad")),
    ),
    Panel(
        "Store latency",
        "s",
        "Longest commit of any node in the last 15 s, to Redis or the disk: QoS 1 and 2 take that long to acknowledge.",
        (whole("flockmq_store_latency_seconds", function="max"),),
        ((None, "good"), (0.1, "odd"), (0.5, "bad")),
    ),
)

MESSAGES = (
    Panel("Messages in", "mps", "PUBLISH packets from clients.", (by_node(rate("publish_received")),), stacked=True),
    Panel(
        "Messages out",
        "mps",
        "PUBLISH packets to clients. Out by in is the fan-out.",
        (by_node(rate("publish_sent")),),
        stacked=True,
    ),
    Panel(
        "Drops by reason",
        "mps",
        "Slow reader: QoS 0 for clients that read too slowly. No Redis: QoS 0 for other nodes while this one was "
        "without Redis. Queue full: QoS 1 and 2 for sessions whose queue is full; these are lost. Not logged: QoS 0 "
        "that the log for analytics lacks. Expired, too large, refused: as the message or its receiver has it, MQTT "
        "5.0.",
        (
            count_of("dropped_slow", "slow reader"),
            count_of("dropped_unlinked", "no Redis"),
            count_of("dropped_queue_full", "queue full"),
            count_of("not_logged", "not logged"),
            count_of("messages_expired", "expired"),
            count_of("messages_too_large", "too large"),
            count_of("messages_refused_by_receiver", "refused"),
        ),
        stacked=True,
    ),
    Panel(
        "Topics in",
        "mps",
        "Messages that nodes have accepted, by topic filter of metrics.topics; without that option there are none.",
        (of_topics("messages_received"),),
    ),
    Panel(
        "Topics out",
        "mps",
        "Deliveries of messages of these topic filters to sessions and shared subscriptions.",
        (of_topics("messages_sent"),),
    ),
    Panel(
        "Events",
        "mps",
        "Events of clients for subscribers of $SYS/broker/events. Suppressed ones were more than events.rate: their "
        "readers know only the number.",
        (count_of("events_published", "published"), count_of("events_suppressed", "suppressed")),
    ),
)

CONNECTIONS = (
    Panel(
        "Clients by node",
        "short",
        "A load balancer with leastconn keeps this even. A restarted node fills slowly: clients are not moved.",
        (by_node("flockmq_clients_connected"),),
        stacked=True,
    ),
    Panel(
        "Connects",
        "cps",
        "CONNECT packets. A take-over is a CONNECT with the client id of a connected client.",
        (
            count_of("connects_accepted", "accepted"),
            count_of("connects_refused", "refused"),
            count_of("takeovers", "take-overs"),
        ),
    ),
    Panel(
        "Ends by reason",
        "cps",
        "Connections that clients did not end themselves. A wave of keep alive time-outs is a network; malformed "
        "packets are a defective or hostile program.",
        (
            count_of("keep_alive_timeouts", "keep alive"),
            count_of("connect_timeouts", "no CONNECT"),
            count_of("malformed_packets", "malformed"),
            count_of("accept_pauses", "accepting paused"),
        ),
    ),
)

ACCESS = (
    Panel(
        "Refused",
        "cps",
        "Wrong credentials: an attacker guesses, or a fleet has outdated ones. Flapping and quotas: clients that "
        "connect too often, or too many.",
        (
            count_of("auth_failures", "wrong credentials"),
            count_of("flapping_refused", "flapping"),
            count_of("connections_refused", "by a quota"),
            count_of("tls_failures", "TLS"),
        ),
    ),
    Panel(
        "Denied",
        "mps",
        "By access rules. Publish: acknowledged and dropped. Delivery: queued or retained messages that the client "
        "may not read any more.",
        (
            count_of("publish_denied", "publish"),
            count_of("delivery_denied", "delivery"),
            count_of("subscribe_denied", "subscribe"),
        ),
    ),
    Panel(
        "Listeners",
        "Bps",
        "Bytes read, by listener; and how often a client was throttled because of its rate.",
        (
            Query("sum by (listener) (rate(flockmq_listener_bytes_received_total[$interval]))", "{{listener}}"),
            count_of("throttled", "throttled, times"),
        ),
    ),
)

QUEUES = (
    Panel(
        "Queued messages",
        "short",
        "QoS 1 and 2 messages that wait for their clients. Steady growth ends at limits.max_queued_messages.",
        (by_node("flockmq_queued_messages"),),
        stacked=True,
    ),
    Panel("Queued bytes", "bytes", "Bytes of these messages.", (by_node("flockmq_queued_bytes"),), stacked=True),
    Panel(
        "In flight",
        "short",
        "QoS 1 and 2 messages that were sent and are not acknowledged yet.",
        (by_node("flockmq_inflight_messages"),),
        stacked=True,
    ),
    Panel(
        "Sessions and subscriptions",
        "short",
        "Of the node that holds most: each holds all persistent sessions, and the clean ones of its own clients.",
        (whole("flockmq_sessions", "sessions", "max"), whole("flockmq_subscriptions", "subscriptions", "max")),
    ),
    Panel(
        "Retained messages",
        "short",
        "Every node holds all of them, and its own $SYS: both lines nearly coincide.",
        (whole("flockmq_retained", "most", "max"), whole("flockmq_retained", "fewest", "min")),
    ),
    Panel(
        "Unrouted and again",
        "mps",
        "Unrouted: without a subscriber. Again: sent with DUP, to a client that had not acknowledged.",
        (count_of("publish_unrouted", "unrouted"), count_of("redelivered", "again")),
    ),
)

STORE = (
    Panel(
        "Store latency by node",
        "s",
        "Longest commit of the last 15 s: to Redis and back, or to the disk.",
        (by_node("flockmq_store_latency_seconds"),),
    ),
    Panel(
        "Waiting for the store",
        "bytes",
        "Given to the store and not yet committed. At 32 MiB publishers are not read.",
        (by_node("flockmq_store_waiting_bytes"),),
        stacked=True,
    ),
    Panel(
        "Latency by shard",
        "s",
        "Of a cluster with several primaries: the longest commit of the last 15 s of any node, by primary.",
        (Query("max by (shard) (flockmq_shard_latency_seconds)", "{{shard}}"),),
    ),
    Panel(
        "Blocks by shard",
        "short",
        "Of a cluster with several primaries: blocks of all nodes that a primary has not confirmed yet.",
        (Query("sum by (shard) (flockmq_shard_waiting)", "{{shard}}"),),
    ),
    Panel(
        "Commits",
        "ops",
        "Blocks given to the store, and how often a publisher had to wait for it.",
        (count_of("commits", "commits"), count_of("read_pauses", "publishers held back")),
    ),
)

CPU = 'rate(process_cpu_seconds_total{job="flockmq"}[$interval])'
TRAFFIC = f"({count_of('publish_received').expr} + {count_of('publish_sent').expr})"

MACHINE = (
    Panel(
        "Loop lag by node",
        "s",
        "Longest delay of the last 15 s. Milliseconds are usual; a quarter of a second is a core that is too busy, "
        "shared or throttled.",
        (by_node("flockmq_loop_lag_seconds"),),
    ),
    Panel("CPU by node", "percentunit", "Of one core, the maximum of a node.", (by_node(CPU),)),
    Panel(
        "CPU per message",
        "s",
        "CPU of all nodes by messages in and out. Half a microsecond to three are usual under load; with few "
        "messages, pings, connects and timers dominate.",
        (Query(f"{whole(CPU).expr} / {TRAFFIC}", "all nodes"),),
    ),
    Panel("Memory by node", "bytes", "Resident.", (by_node('process_resident_memory_bytes{job="flockmq"}'),)),
    Panel(
        "File descriptors",
        "percentunit",
        "Of a node's limit. Every connection takes one.",
        (by_node('process_open_fds{job="flockmq"} / process_max_fds{job="flockmq"}'),),
    ),
    Panel(
        "Network",
        "Bps",
        "Read from clients and written to them.",
        (count_of("bytes_received", "in"), count_of("bytes_sent", "out")),
    ),
)

BALANCER = (
    Panel(
        "Sessions of the load balancer",
        "short",
        "Connections by frontend, and their limit (maxconn).",
        (
            Query("haproxy_frontend_current_sessions", "{{proxy}}"),
            Query("haproxy_frontend_limit_sessions > 0", "{{proxy}} may have"),
        ),
    ),
    Panel(
        "New connections",
        "cps",
        "By frontend.",
        (Query("sum by (proxy) (rate(haproxy_frontend_connections_total[$interval]))", "{{proxy}}"),),
    ),
    Panel(
        "Servers in use",
        "short",
        "Nodes that pass HAProxy's health check, by backend.",
        (Query("haproxy_backend_active_servers", "{{proxy}}"),),
    ),
)

ROWS = (  # title, panels, their width and height
    ("", NOW, 3, 4),
    ("Messages", MESSAGES, 8, 8),
    ("Connections", CONNECTIONS, 8, 8),
    ("Access", ACCESS, 8, 8),
    ("Queues and sessions", QUEUES, 8, 8),
    ("Store", STORE, 8, 8),
    ("Machines", MACHINE, 8, 8),
    ("Load balancer", BALANCER, 8, 8),
)


def target(query: Query, letter: str, instant: bool) -> dict[str, Any]:
    """A query as Grafana keeps it."""
    return {
        "refId": letter,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": instant,
        "range": not instant,
    }


def field(panel: Panel) -> dict[str, Any]:
    """Unit and colours of a panel's figures."""
    steps = [{"value": value, "color": COLORS[name]} for value, name in panel.steps]
    defaults: dict[str, Any] = {"unit": panel.unit, "mappings": []}
    if panel.words:
        options = {str(value): {"text": word, "index": value} for value, word in enumerate(panel.words)}
        defaults["mappings"] = [{"type": "value", "options": options}]
    if steps:
        defaults |= {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}
    else:
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults |= {"color": {"mode": "palette-classic"}, "min": 0}
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 5,
            "stacking": stacking,
            "showPoints": "never",
        }
    return {"defaults": defaults, "overrides": []}


def laid_out(panel: Panel, number: int, x: int, y: int, w: int, h: int) -> dict[str, Any]:
    """A panel as Grafana keeps it."""
    single = bool(panel.steps)
    stat = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "value",
    }
    graph = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return {
        "id": number,
        "type": "stat" if single else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"x": x, "y": y, "w": w, "h": h},
        "targets": [target(query, chr(ord("A") + i), single) for i, query in enumerate(panel.queries)],
        "fieldConfig": field(panel),
        "options": stat if single else graph,
    }


def panels() -> list[dict[str, Any]]:
    """All panels, row by row, with their places."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, row, width, height in ROWS:
        if title:
            place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
            placed.append(
                {
                    "id": len(placed) + 1,
                    "type": "row",
                    "title": title,
                    "collapsed": False,
                    "gridPos": place,
                    "panels": [],
                }
            )
            y += 1
        for number, panel in enumerate(row):
            x, down = number * width % WIDTH, number * width // WIDTH
            placed.append(laid_out(panel, len(placed) + 1, x, y + down * height, width, height))
        y += -(-len(row) * width // WIDTH) * height
    return placed


def variables() -> list[dict[str, Any]]:
    """What is chosen at the top of the page."""
    lengths = [{"text": length, "value": length, "selected": length == "1m"} for length in ("1m", "5m", "15m", "1h")]
    return [
        {
            "name": "datasource",
            "label": "Prometheus",
            "type": "datasource",
            "query": "prometheus",
            "hide": 0,
            "skipUrlSync": False,
        },
        {
            "name": "node",
            "label": "Node",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "$datasource"},
            "query": "label_values(flockmq_info, node)",
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all", "selected": True},
            "hide": 0,
            "skipUrlSync": False,
        },
        {
            "name": "interval",
            "label": "Rates over",
            "type": "interval",
            "query": "1m,5m,15m,1h",
            "options": lengths,
            "current": {"text": "1m", "value": "1m", "selected": True},
            "hide": 0,
            "skipUrlSync": False,
        },
    ]


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    return {
        "uid": "flockmq",
        "title": "FlockMQ",
        "description": "A cluster of FlockMQ nodes: messages, clients, queues, and their cost.",
        "tags": ["mqtt", "flockmq"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "schemaVersion": 38,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables()},
        "panels": panels(),
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1, ensure_ascii=False)
    print()
