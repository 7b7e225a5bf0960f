"""The limits of a node, a row each: the counted thing, its present number, and the effect of the limit.

The API, `flockmq limits` and the web page are derived from the rows. A new option that is a limit needs a row here, or
a reason in `WITHOUT_ROW`.
"""

import resource
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple

from .._speedups.session.session import Session
from .._speedups.session.tenant import Tenant
from .auth.bans import MAX_BANS
from .broker import Broker
from .config.keys import KEYS
from .config.link import CLIENT_ID_PREFIX, LinkConfig
from .config.schema import Config
from .coordination.coordinator import RedisUse
from .core.data_plane import MAX_UNCOMMITTED_BYTES
from .storage.store import LogStore

SCOPES = ("node", "cluster", "session", "connection", "group", "listener", "address", "user", "link", "tenant")
UNITS = (
    "connections",
    "files",
    "sessions",
    "subscriptions",
    "streams",
    "messages",
    "bytes",
    "levels",
    "filters",
    "bans",
)
UNLIMITED = 0xFFFFFFFF  # of the reactor and of a listener
NEXT_START = "Set {name} in the configuration, then restart the node."
RELOAD = "Set {name} in the configuration, then reload it (SIGHUP)."
OF_LINK = "Set {option} in the table of the link, [links.NAME], then reload the configuration (SIGHUP)."
OF_TENANT = "Set {option} in the table of the tenant, [[tenants]], then reload the configuration (SIGHUP)."


class Use(NamedTuple):
    """How full a limit is: of the fullest one, if there are many."""

    used: int | None  # None: it is not known
    limit: int | None  # None: there is no limit
    whose: str = ""  # name of the fullest one

    @property
    def full(self) -> float | None:
        """The part that is used; None: it is not known, or there is no limit."""
        return self.used / self.limit if self.used is not None and self.limit else None


class GroupUse(NamedTuple):
    """The messages that wait in a shared subscription, here and in Redis."""

    name: bytes
    messages: int
    bytes: int
    max_messages: int
    max_bytes: int


class Measured(NamedTuple):
    """The state of a node that the rows read."""

    broker: Broker
    sessions: dict[str, tuple[Session, int]]  # by name of a limit: the fullest session, and its figure
    fullest: dict[str, Use]  # by name of a limit: of groups and tenants
    links: Sequence[dict[str, Any]]  # links that run here, as `Links` describes them
    open_files: int
    redis: RedisUse | None  # None: the node is alone, or Redis does not reply

    @property
    def config(self) -> Config:
        """Configuration in force."""
        return self.broker.config


Read = Callable[[Measured], Use]


class Limit(NamedTuple):
    """A limit."""

    name: str  # configuration key
    scope: str  # of SCOPES: the limit is of all together, or of each
    unit: str  # of UNITS
    when_reached: str
    change: str  # how an operator changes the limit
    read: Read
    measure: Callable[[Any], int] | None = None  # figure of a session; the session with the highest one counts
    use_of: Callable[[Any], Use] | None = None  # use of a group or a tenant; the fullest one counts
    is_trimmed: bool = False  # it is full in normal operation


def fullest(uses: Iterable[Use]) -> Use:
    """The fullest; without a limit the highest figure."""
    return max(uses, key=lambda use: (use.full or 0.0, use.used or 0), default=Use(0, None))


def option(name: str, scope: str, unit: str, when_reached: str, read: Read, *, is_trimmed: bool = False) -> Limit:
    """A limit that is a configuration key."""
    change = (RELOAD if KEYS[name].reloadable else NEXT_START).format(name=name)
    return Limit(name, scope, unit, when_reached, change, read, is_trimmed=is_trimmed)


def value(measured: Measured, name: str) -> int:
    """The value of a configuration key that is a number."""
    found = KEYS[name].of(measured.config)
    assert isinstance(found, int)
    return found


def node_limit(name: str, unit: str, when_reached: str, used: Callable[[Measured], int | None]) -> Limit:
    """A limit of all that is at the node."""
    return option(name, "node", unit, when_reached, lambda m: Use(used(m), value(m, name)))


def packet_limit(name: str, unit: str, when_reached: str) -> Limit:
    """A limit of each packet, which has no present use."""
    return option(name, "connection", unit, when_reached, lambda m: Use(None, value(m, name) or None))


def session_limit(
    name: str, unit: str, when_reached: str, measure: Callable[[Session], int], scope: str = "session"
) -> Limit:
    """A limit of each session, or of its connection."""

    def read(measured: Measured) -> Use:
        found = measured.sessions.get(name)
        whose = found[0].client_id.decode() if found is not None and found[1] else ""
        return Use(found[1] if found is not None else 0, value(measured, name), whose)

    return option(name, scope, unit, when_reached, read)._replace(measure=measure)


def group_limit(name: str, unit: str, use_of: Callable[[GroupUse], Use]) -> Limit:
    """A limit of each shared subscription."""
    when_reached = "A message is dropped: the newest or the oldest one, as the group or limits.queue_policy says."
    row = option(name, "group", unit, when_reached, lambda m: m.fullest.get(name, Use(0, value(m, name))))
    return row._replace(use_of=use_of)


def tenant_limit(limit: str, unit: str, when_reached: str, used: str, attribute: str = "") -> Limit:
    """A limit of each tenant: its option, the figure of `Tenant`, and the limit of `Tenant` if it has another name."""
    name = f"tenants.{limit}"

    def use_of(tenant: Tenant) -> Use:
        return Use(getattr(tenant, used), getattr(tenant, attribute or limit) or None, tenant.name)

    change = OF_TENANT.format(option=limit)
    return Limit(name, "tenant", unit, when_reached, change, lambda m: m.fullest.get(name, Use(0, None)), use_of=use_of)


def link_limit(option: str, unit: str, when_reached: str, use_of: Callable[[Measured, LinkConfig], Use]) -> Limit:
    """A limit of each link."""

    def read(measured: Measured) -> Use:
        return fullest(use_of(measured, config)._replace(whose=config.name) for config in measured.config.links)

    return Limit(f"links.{option}", "link", unit, when_reached, OF_LINK.format(option=option), read)


def of_connection(session: Session, name: str) -> int:
    """A figure of the connection of a session; 0: it has none."""
    return getattr(session.owner, name) if session.owner is not None else 0


def queue_of_link(measured: Measured, config: LinkConfig) -> tuple[int, int]:
    """Messages and bytes that wait for the other broker of a link."""
    session = measured.broker.data_plane.sessions.get(f"{CLIENT_ID_PREFIX}{config.name}".encode())
    return (session.queue_length, session.queue_bytes) if session is not None else (0, 0)


def wanted_of_link(measured: Measured, name: str) -> int:
    """Filters that a side of a link asks for, the side with more; 0: the link is not connected, or carries all."""
    found = next((link["wanted"] for link in measured.links if link["name"] == name), None)
    return max(found["here"], found["there"]) if found is not None else 0


def connections(measured: Measured) -> Use:
    """Open connections. Without a configured limit, the descriptors limit them."""
    reactor = measured.broker.data_plane.reactor
    return Use(len(reactor), None if reactor.max_connections == UNLIMITED else reactor.max_connections)


def files(measured: Measured) -> Use:
    """Descriptors of the process."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Use(measured.open_files, None if most == resource.RLIM_INFINITY else most)


def sessions(measured: Measured) -> int | None:
    """Sessions at the node; in a cluster the persistent ones of all nodes."""
    broker = measured.broker
    if broker.coordinator.nodes.is_alone:
        return broker.data_plane.sessions.count
    return measured.redis.sessions if measured.redis is not None else None


def per_listener(measured: Measured) -> Use:
    """Connections of the fullest listener."""
    listeners = measured.broker.data_plane.reactor.listeners.values()
    return fullest(
        Use(each.connections, None if each.max_connections == UNLIMITED else each.max_connections, each.name)
        for each in listeners
    )


def smallest(measured: Measured, name: str) -> int | None:
    """The smallest value of a quota of the listeners; None: none has a limit."""
    return min((found for quotas in measured.broker.quotas.values() if (found := getattr(quotas, name))), default=None)


def per_address(measured: Measured) -> Use:
    """Connections from the address with the most; they are counted where a listener has a limit."""
    known = measured.broker.data_plane.reactor.connections_by_address
    address = max(known, key=known.__getitem__, default=b"")
    limit = smallest(measured, "max_connections_per_address")
    return Use(known.get(address, 0), limit, _shown(address))


def _shown(address: bytes) -> str:
    """An address or an IPv6 network of the reactor, as text."""
    if len(address) == 8:
        return f"{ip_address(address + bytes(8))}/64"
    return str(ip_address(address)) if address else ""


def per_user(measured: Measured) -> Use:
    """Connections of the user with the most."""
    limit = smallest(measured, "max_connections_per_user")
    user, number = measured.broker.connected_users.most_connected()
    return Use(number, limit, user)


def streams(measured: Measured) -> Use:
    """Streams of the client that reads the most."""
    limit = value(measured, "limits.max_streams")
    name, number = max(measured.broker.streams.counts(), key=lambda found: found[1], default=("", 0))
    return Use(number, limit, name)


def log_waiting(measured: Measured) -> int:
    """Bytes of the log of messages that wait for the store."""
    store = measured.broker.store
    return store.log_waiting if isinstance(store, LogStore) else 0


def log_size(measured: Measured) -> Use:
    """Bytes of the log of messages."""
    store = measured.broker.store
    return Use(store.log_size if isinstance(store, LogStore) else 0, value(measured, "analytics.log_bytes"))


def redis_memory(measured: Measured) -> Use:
    """Memory of the cluster's Redis."""
    redis = measured.redis
    return Use(redis.memory, redis.max_memory) if redis is not None else Use(None, None)


REFUSED_CONNECT = "CONNECT is refused: reason code 0x97 (Quota exceeded), return code 3 before MQTT 5.0."
REFUSED_FILTER = "SUBSCRIBE gets reason code 0x97 (Quota exceeded) for the filter, 0x80 before MQTT 5.0."
PAUSED = "No connection is accepted until others close; clients wait in the kernel."
NOT_RETAINED = "A message for a new topic name is delivered and not retained; its publisher gets no error."
DELAYED = "The message is dropped: PUBACK or PUBREC has reason code 0x97 (Quota exceeded), before MQTT 5.0 no error."
QUEUE_FULL = "A message is dropped: the newest or the oldest one, as limits.queue_policy says; the log has the session."
LINK_QUEUE_FULL = "A message is dropped: the newest or the oldest one, as queue_policy of the link says."
NO_CONNECTION = "The connection is closed at once."

LIMITS: tuple[Limit, ...] = (
    option("limits.max_connections", "node", "connections", PAUSED, connections),
    Limit(
        "RLIMIT_NOFILE",
        "node",
        "files",
        PAUSED,
        "Raise `ulimit -n`, or LimitNOFILE of the systemd unit, then restart the node.",
        files,
    ),
    node_limit(
        "limits.max_pending_connects",
        "connections",
        "Connections that have sent no CONNECT for two seconds give way to new ones; else clients wait in the kernel.",
        lambda m: m.broker.data_plane.reactor.pending_connects,
    ),
    option(
        "limits.max_sessions",
        "cluster",
        "sessions",
        "A new client identifier is refused: reason code 0x97 (Quota exceeded), return code 3 before MQTT 5.0.",
        lambda m: Use(sessions(m), value(m, "limits.max_sessions")),
    ),
    packet_limit(
        "limits.max_packet_size",
        "bytes",
        "The connection is closed: reason code 0x95 (Packet too large).",
    ),
    packet_limit(
        "limits.max_topic_levels",
        "levels",
        "PUBLISH gets reason code 0x90 (Topic Name invalid); with QoS 0 or before MQTT 5.0 it ends the connection. "
        "SUBSCRIBE gets 0x8F, 0x80 before MQTT 5.0.",
    ),
    session_limit(
        "limits.max_inflight",
        "messages",
        "Further messages wait in the queue until the client acknowledges one.",
        lambda session: session.inflight,
    ),
    session_limit(
        "limits.receive_maximum",
        "messages",
        "One more message ends the connection: reason code 0x93 (Receive Maximum exceeded).",
        lambda session: of_connection(session, "unacknowledged_messages"),
        "connection",
    ),
    session_limit("limits.max_queued_messages", "messages", QUEUE_FULL, lambda session: session.queue_length),
    session_limit("limits.max_queued_bytes", "bytes", QUEUE_FULL, lambda session: session.queue_bytes),
    session_limit(
        "limits.max_awaiting_release",
        "messages",
        "PUBREC has reason code 0x97 (Quota exceeded); before MQTT 5.0 the connection is closed.",
        lambda session: session.awaiting_release,
    ),
    session_limit(
        "limits.max_outgoing_bytes",
        "bytes",
        "QoS 0 is dropped, QoS 1 and 2 wait in the queue, and packets of the client are not read.",
        lambda session: of_connection(session, "outgoing_bytes"),
        "connection",
    ),
    session_limit(
        "limits.max_subscriptions", "subscriptions", REFUSED_FILTER, lambda session: session.subscription_weight
    ),
    node_limit(
        "limits.max_subscription_bytes",
        "bytes",
        REFUSED_FILTER,
        lambda m: m.broker.data_plane.router.filters.size,
    ),
    option("limits.max_streams", "connection", "streams", REFUSED_FILTER, streams),
    node_limit(
        "limits.max_retained_messages", "messages", NOT_RETAINED, lambda m: m.broker.data_plane.router.retained.count
    ),
    node_limit("limits.max_retained_bytes", "bytes", NOT_RETAINED, lambda m: m.broker.data_plane.router.retained.size),
    option(
        "limits.max_delayed_messages",
        "cluster",
        "messages",
        DELAYED,
        lambda m: Use(m.broker.data_plane.router.delayed.count, value(m, "limits.max_delayed_messages")),
    ),
    option(
        "limits.max_delayed_bytes",
        "cluster",
        "bytes",
        DELAYED,
        lambda m: Use(m.broker.data_plane.router.delayed.size, value(m, "limits.max_delayed_bytes")),
    ),
    Limit(
        "unstored messages",
        "node",
        "bytes",
        "Publishers are not read until the store has caught up.",
        "Fixed. Give the store a faster disk, or Redis a faster network.",
        lambda m: Use(m.broker.data_plane.turn.uncommitted, MAX_UNCOMMITTED_BYTES),
    ),
    group_limit(
        "shared.max_queued_messages",
        "messages",
        lambda group: Use(group.messages, group.max_messages, group.name.decode()),
    ),
    group_limit(
        "shared.max_queued_bytes", "bytes", lambda group: Use(group.bytes, group.max_bytes, group.name.decode())
    ),
    node_limit(
        "analytics.max_waiting_bytes",
        "bytes",
        "Messages of QoS 0 are counted instead of logged.",
        log_waiting,
    ),
    option(
        "analytics.log_bytes",
        "node",
        "bytes",
        "The oldest messages of the log are dropped, read or not.",
        log_size,
        is_trimmed=True,
    ),
    option("quotas.max_connections", "listener", "connections", NO_CONNECTION, per_listener),
    option("quotas.max_connections_per_address", "address", "connections", NO_CONNECTION, per_address),
    option("quotas.max_connections_per_user", "user", "connections", REFUSED_CONNECT, per_user),
    packet_limit(
        "quotas.max_packet_size",
        "bytes",
        "The connection is closed: reason code 0x95 (Packet too large).",
    ),
    link_limit(
        "max_queued_messages",
        "messages",
        LINK_QUEUE_FULL,
        lambda m, link: Use(queue_of_link(m, link)[0], link.max_queued_messages or m.config.limits.max_queued_messages),
    ),
    link_limit(
        "max_queued_bytes",
        "bytes",
        LINK_QUEUE_FULL,
        lambda m, link: Use(queue_of_link(m, link)[1], link.max_queued_bytes or m.config.limits.max_queued_bytes),
    ),
    link_limit(
        "max_wanted",
        "filters",
        "All topics of the rules are carried, wanted or not.",
        lambda m, link: Use(wanted_of_link(m, link.name), link.max_wanted),
    ),
    tenant_limit("max_connections", "connections", REFUSED_CONNECT, "connections"),
    tenant_limit("max_sessions", "sessions", REFUSED_CONNECT, "sessions"),
    tenant_limit("max_subscriptions", "subscriptions", REFUSED_FILTER, "subscriptions"),
    tenant_limit("max_subscription_bytes", "bytes", REFUSED_FILTER, "subscription_bytes"),
    tenant_limit("max_retained_messages", "messages", NOT_RETAINED, "retained", "max_retained"),
    tenant_limit("max_retained_bytes", "bytes", NOT_RETAINED, "retained_bytes"),
    tenant_limit("max_delayed_messages", "messages", DELAYED, "delayed", "max_delayed"),
    tenant_limit("max_queued_bytes", "bytes", "A message for a queue of the tenant is dropped.", "queued_bytes"),
    Limit(
        "bans",
        "cluster",
        "bans",
        "A further ban gets 409.",
        "Fixed. Remove bans, or ban a network in place of its addresses.",
        lambda m: Use(len(m.broker.bans), MAX_BANS),
    ),
    Limit(
        "maxmemory of Redis",
        "cluster",
        "bytes",
        "Redis refuses what adds state: no message of QoS 1 and 2 is acknowledged until there is memory.",
        "`CONFIG SET maxmemory` in Redis, and maxmemory in its configuration.",
        redis_memory,
    ),
)

# Options that look like limits and have no row, with the reason.
WITHOUT_ROW = {
    "limits.queue_policy": "selects the message that a full queue drops",
    "limits.stuck_after": "a time after which a session is reported",
    "limits.connect_timeout": "a time that each connection has",
    "limits.transaction_timeout": "a time that each part of a transaction has",
    "limits.max_keep_alive": "a time that each client may choose",
    "mqtt.max_session_expiry": "a time that each client may choose",
    "shared.max_deliveries": "a number of attempts with each message",
    "links.max_inflight": "the other broker may set less; messages wait in the queue of the link",
    "links.max_rate": "a rate; messages wait in the queue of the link",
    "links.max_bytes_rate": "a rate; messages wait in the queue of the link",
    "audit.max_bytes": "a number of bytes; the oldest records are dropped first",
    "tenants.messages_per_second": "a rate; clients over it are read later",
    "tenants.bytes_per_second": "a rate; clients over it are read later",
}
