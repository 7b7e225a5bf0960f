"""The schema of the configuration: every setting with type, default, one sentence and the kind of value.

A key is one field of a dataclass, here or in a `*_config.py` beside this file. Everything else is derived from the
fields (keys.py): TOML keys (`[limits] max_inflight`), environment variables (`FLOCKMQ_LIMITS_MAX_INFLIGHT`), flags,
`--set limits.max_inflight=...`, and the sample `deploy/flockmq.toml`. Fields marked `reloadable` may change on SIGHUP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from .admin_config import AuditConfig, HttpConfig, MetricsConfig, OidcConfig, OtelConfig, TracesConfig
from .auth_config import AuthConfig
from .declared_group import DeclaredGroup, DeclaredGroups
from .kinds import (
    Boolean,
    Choice,
    Duration,
    FilePath,
    Integer,
    ListenUrls,
    Name,
    Networks,
    PythonObjects,
    RedisUrlKind,
    Size,
    StoreUrl,
    Texts,
    TopicFilters,
    Workers,
)
from .limits_config import LimitsConfig, QuotasConfig
from .link import LinkConfig, Links
from .option import CENTURY, COUNT_MAX, DAY, MIB, SIZE_MAX, option
from .schema_rule import SchemaRule, SchemaRules
from .tenants import TenantRule, TenantRules
from .topic_rules import AutoSubscription, AutoSubscriptions, RewriteRule, RewriteRules


@dataclass(frozen=True)
class StoreConfig:
    """Where sessions, queues and retained messages are stored."""

    url: str = option(
        "sqlite:flockmq.db",
        "Where state is stored: sqlite:PATH survives the process, memory does not.",
        StoreUrl(),
        flag="--store",
    )
    sync: str = option(
        "full",
        "When a message counts as stored: full = on the disk, survives loss of power; "
        "normal = handed to the kernel, survives kill -9.",
        Choice(("full", "normal")),
        flag="--sync",
    )


@dataclass(frozen=True)
class LogConfig:
    """The log of the node, on standard error."""

    level: str = option(
        "info",
        "The lowest level that is logged.",
        Choice(("debug", "info", "warning", "error")),
        reloadable=True,
        flag="--log-level",
    )
    format: str = option(
        "text",
        "text for people, json for machines (one object a line).",
        Choice(("text", "json")),
        flag="--log-format",
    )


@dataclass(frozen=True)
class MqttConfig:
    """Choices that the standard leaves open."""

    long_client_ids: bool = option(
        False, "Accept client identifiers of more than 23 characters from MQTT 3.1 clients.", Boolean(), reloadable=True
    )
    control_characters: bool = option(
        False,
        "Accept control characters (U+0001 to U+001F, U+007F to U+009F) and non-characters in topic names, topic "
        "filters, client identifiers and user names.",
        Boolean(),
        reloadable=True,
    )
    retry_interval: float = option(
        20.0,
        "Seconds until an unacknowledged message is sent again to a connected MQTT 3.1 client; 0 = never.",
        Duration(0, DAY),
        reloadable=True,
    )
    sys_interval: float = option(
        10.0, "Seconds between updates of the $SYS topics; 0 = no $SYS topics.", Duration(0, DAY), reloadable=True
    )
    session_expiry: float = option(
        0.0,
        "Seconds after which the persistent session of a disconnected client ends. 0 = never. MQTT 5.0 clients choose "
        "this time themselves.",
        Duration(0, CENTURY),
        reloadable=True,
    )
    max_session_expiry: float = option(
        0.0,
        "Seconds; the longest Session Expiry Interval of an MQTT 5.0 client, which gets this limit in CONNACK. "
        "0 = no limit.",
        Duration(0, CENTURY),
        reloadable=True,
    )
    topic_alias_maximum: int = option(
        16, "Topic aliases that an MQTT 5.0 client may set; 0 = none.", Integer(0, 255), reloadable=True
    )
    validate_payload: bool = option(
        False,
        "Check that the payload is UTF-8 where an MQTT 5.0 client says so; the message is refused if it is not.",
        Boolean(),
        reloadable=True,
    )
    maximum_qos: int = option(
        2,
        "The highest QoS: an MQTT 5.0 client gets it in CONNACK, a PUBLISH above it ends its connection, and a "
        "subscription gets no more.",
        Integer(0, 2),
        reloadable=True,
    )
    retain_available: bool = option(
        True,
        "Whether clients may publish retained messages: an MQTT 5.0 client gets it in CONNACK, and a PUBLISH with "
        "RETAIN ends its connection if not.",
        Boolean(),
        reloadable=True,
    )
    rewrite: tuple[RewriteRule, ...] = option(
        (),
        "Topics of clients that are replaced, a table [[mqtt.rewrite]] each: source (a topic filter), target ($1 is "
        "the part that the first wildcard of the source stands for; %c the client identifier, %u the user name), "
        "action (all, publish or subscribe). The first that matches counts. Access rules are of the new topics "
        "(deploy/docs/MQTT.md).",
        RewriteRules(),
        reloadable=True,
    )
    auto_subscribe: tuple[AutoSubscription, ...] = option(
        (),
        "Subscriptions that clients get when they connect, a table [[mqtt.auto_subscribe]] each: topic_filter (with "
        "%c, %u), qos (0), no_local (false), retain_as_published (false), retain_handling (1), listener (its name) and "
        'user (a pattern such as "sensor-*") if not for all clients (deploy/docs/MQTT.md).',
        AutoSubscriptions(),
        reloadable=True,
    )
    server_reference: tuple[str, ...] = option(
        (),
        "Servers, HOST:PORT each, to which a node that stops sends its MQTT 5.0 clients (reason code 0x9C). Some "
        "clients then never come back: leave it empty if nodes only restart.",
        Texts(r"[!#-&(-+\--~]+", "addresses such as broker-2.example:1883"),
        reloadable=True,
    )
    moved_to: str = option(
        "",
        "The server, HOST:PORT, to which this one has moved for good: it refuses MQTT 5.0 clients with reason code "
        "0x9D. Older clients can't be told, and are served.",
        Name(r"[!#-&(-+\--~]*", "an address such as broker-2.example:1883"),
        reloadable=True,
    )


@dataclass(frozen=True)
class SharedConfig:
    """Shared subscriptions: each message to `$share/NAME/FILTER` goes to one of the subscribers."""

    window: int = option(
        32,
        "QoS 1 and 2 messages of a shared subscription that one subscriber has and has not acknowledged; the rest "
        "waits for whoever has room first.",
        Integer(1, 65_535),
        reloadable=True,
    )
    max_queued_messages: int = option(
        100_000, "QoS 1 and 2 messages that wait in one shared subscription.", Integer(1, COUNT_MAX), reloadable=True
    )
    max_queued_bytes: int = option(
        256 * MIB,
        "Bytes of the messages that wait in one shared subscription; limits.queue_policy selects the one to drop.",
        Size(1024, SIZE_MAX),
        reloadable=True,
    )
    redispatch: float = option(
        5.0,
        "Seconds after which the unacknowledged QoS 1 messages of a disconnected subscriber with a persistent session "
        "go to others. 0 = at once.",
        Duration(0, CENTURY),
        reloadable=True,
    )
    max_deliveries: int = option(
        0,
        "Times that a QoS 1 or 2 message of a shared subscription is sent and refused, or not acknowledged, before it "
        "is a dead letter. 0 = no limit, and a refused message is dropped, as MQTT 5.0 says.",
        Integer(0, 65_535),
        reloadable=True,
    )
    dead_letter_topic: str = option(
        "",
        "Topic that dead letters are published to; user properties have their history. Empty = they are dropped.",
        Name(r"[^+#\x00-\x1f\x7f]{0,1000}", "a topic name without wildcards"),
        reloadable=True,
    )
    groups: tuple[DeclaredGroup, ...] = option(
        (),
        "Groups that exist without subscribers, so that messages wait for the first; one table [[shared.groups]] each: "
        "name ($share/NAME/FILTER), and settings of its own: window, max_queued_messages, max_queued_bytes, when_full "
        "(drop-old or drop-new), expiry (seconds that a message may wait), last_value (only the newest message of "
        "each topic waits), strategy (rotation, topic or publisher), max_deliveries, dead_letter_topic, paused. One "
        "that is no longer here stays until `flockmq groups remove`.",
        DeclaredGroups(),
        reloadable=True,
    )


@dataclass(frozen=True)
class ClusterConfig:
    """Many nodes as one broker, which share only a Redis. Without `redis`, and with one worker, the node is alone."""

    redis: str = option(
        "",
        "Where the nodes store shared state: redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss:// for TLS, unix:///PATH, "
        "redis+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB], or redis+cluster://HOST:PORT,HOST:PORT (some servers of a "
        "Redis Cluster; rediss+cluster:// for TLS); store.url is then unused.",
        RedisUrlKind(),
        flag="--redis",
    )
    shards: int = option(
        1,
        "Parts into which the state is divided, each on a Redis primary; for good. Several URLs in cluster.redis, with "
        "spaces between them, are as many. With redis+cluster:// each has a slot of its own.",
        Integer(1, 64),
    )
    node_name: str = option(
        "",
        "Name of the node in logs and `flockmq cluster status`; empty = the host's name.",
        Name("[A-Za-z0-9._-]{0,64}", "up to 64 letters, digits, dots, underscores and hyphens"),
        flag="--node-name",
    )
    workers: int = option(
        1,
        "Nodes to start on this machine, which share the addresses; auto = one for each core. Without `redis`, more "
        "than one start a Redis of their own, with its files in a directory beside those of store.url.",
        Workers(1, 256),
        flag="--workers",
    )
    prefix: str = option(
        "mq:",
        "Prefix of every key and channel in Redis; clusters with different prefixes can share one Redis. In a Redis "
        "Cluster it is a hash tag: {mq}: in place of mq: keeps all keys in one slot.",
        Name("[A-Za-z0-9:._/-]{1,64}", "1 to 64 letters, digits and characters of :._/-"),
    )
    lease: float = option(
        6.0,
        "Seconds without a heartbeat after which the other nodes declare a node dead.",
        Duration(0.5, 600),
    )
    replicas: int = option(
        0,
        "Replicas of Redis that must have a message before it is acknowledged (WAIT).",
        Integer(0, 16),
    )
    timeout: float = option(2.0, "Seconds without a reply after which Redis counts as unavailable.", Duration(0.1, 600))


@dataclass(frozen=True)
class AnalyticsConfig:
    """The log of messages, for streams, `flockmq replay` and Spark (`flockmq analytics`): in the cluster's Redis, or in
    files beside the store of a node without Redis. Without `topics` there is none."""

    topics: tuple[str, ...] = option(
        (),
        'Topic filters of the messages that are logged: "#" is all but those that begin with $.',
        TopicFilters(),
        reloadable=True,
        flag="--analytics",
    )
    log_bytes: int = option(
        256 * MIB,
        "Bytes of the log of messages of a node; the oldest are dropped first, read or not.",
        Size(1 * MIB, SIZE_MAX),
        reloadable=True,
    )
    log_seconds: float = option(
        3600.0,
        "Seconds for which logged messages are kept.",
        Duration(1, CENTURY),
        reloadable=True,
    )
    max_waiting_bytes: int = option(
        32 * MIB,
        "Bytes of the log that may wait for a slow Redis or disk; above, messages of QoS 0 are counted instead of "
        "logged.",
        Size(64 * 1024, SIZE_MAX),
        reloadable=True,
    )


@dataclass(frozen=True)
class EventsConfig:
    """Events of clients: messages below $SYS/broker/events/, made for subscribers only (deploy/docs/EVENTS.md)."""

    rate: int = option(
        200,
        "Events a second that this node publishes to operators, and to each tenant, at most; more are only counted, "
        "and an event reports their number. 0 = no events.",
        Integer(0, 1_000_000),
        reloadable=True,
    )
    of_tenants: bool = option(
        False,
        "Clients without a tenant that may read events get those of the tenants' clients, too, under whole names.",
        Boolean(),
        reloadable=True,
    )


@dataclass(frozen=True)
class ProxyConfig:
    """Clients behind a load balancer that sends their addresses by the PROXY protocol, version 1 or 2."""

    listen: tuple[str, ...] = option(
        (),
        "Addresses to accept MQTT from load balancers on, as in `listen`: every connection must begin with a PROXY "
        "header there. `listen` accepts none.",
        ListenUrls(may_be_empty=True),
        flag="--proxy-listen",
    )
    trusted: tuple[str, ...] = option(
        ("127.0.0.0/8", "::1/128"),
        "Networks of the load balancers; other connections to `proxy.listen` are closed.",
        Networks(),
    )


@dataclass(frozen=True)
class HooksConfig:
    """Your own Python, called for clients and messages: subclasses of `flockmq.hooks.Hooks`."""

    load: tuple[str, ...] = option(
        (),
        "Hooks as MODULE:OBJECT each, called in this order; a class is called to make one.",
        PythonObjects(),
        flag="--hooks",
    )
    timeout: float = option(
        5.0, "Seconds that a call of an `async def` may take; after that it counts as a refusal.", Duration(0.01, 3600)
    )


@dataclass(frozen=True)
class TlsConfig:
    """Certificates, for listeners and `http.listen` addresses with TLS. Files are reloaded on SIGHUP and when they
    change."""

    certificate: str = option(
        "", "PEM file with the certificate, followed by its intermediate certificates.", FilePath(), reloadable=True
    )
    key: str = option("", "PEM file with its private key, without a password.", FilePath(), reloadable=True)
    certificates: tuple[str, ...] = option(
        (),
        "Further certificates, chosen by the name that a client requests: PEM files that have the key too, or "
        "directories of NAME.pem and NAME.key, or of NAME/fullchain.pem and NAME/privkey.pem as certbot makes them.",
        Texts(r"[^\0]+", "paths of files or directories"),
        reloadable=True,
    )
    client_certificate: str = option(
        "none",
        "Whether clients need a certificate of `tls.client_ca`.",
        Choice(("none", "optional", "required")),
        reloadable=True,
    )
    client_ca: str = option(
        "", "PEM file with the authorities that sign client certificates.", FilePath(), reloadable=True
    )
    client_crl: str = option(
        "",
        "PEM file with their lists of revoked certificates; with it, every authority needs one that is not out of "
        "date.",
        FilePath(),
        reloadable=True,
    )
    username_from: str = option(
        "none",
        "Part of a client certificate that is the user name: none, cn = its common name, subject = all of its subject.",
        Choice(("none", "cn", "subject")),
        reloadable=True,
    )
    min_version: str = option("1.2", "The oldest accepted version of TLS.", Choice(("1.2", "1.3")), reloadable=True)
    session_lifetime: float = option(
        DAY,
        "How long a client can resume a TLS session without a full handshake, also after a restart and at any node of "
        "the cluster; 0 = never. Not for `http.listen`.",
        Duration(0, 7 * DAY),
        reloadable=True,
    )


@dataclass(frozen=True)
class WebsocketConfig:
    """MQTT over WebSocket, for browsers: listeners with ws:// and wss://."""

    path: str = option(
        "/mqtt",
        "The path that is served; other paths get 404.",
        Name(r"/[!-~]*", 'a path such as "/mqtt"'),
        reloadable=True,
    )
    origins: tuple[str, ...] = option(
        (),
        'Origins of pages that may connect, such as https://app.example; "*" = all. Without any, only programs that '
        "are no browsers and pages of the same host.",
        Texts(r"\*|https?://[^/\s,]+", 'origins such as "https://app.example", or "*"'),
        reloadable=True,
    )


@dataclass(frozen=True)
class ListenerConfig:
    """One listener: the `[listeners.NAME]` table, over the sections of the same names."""

    name: str  # "default" for `listen`
    places: tuple[tuple[str, bool], ...]  # addresses, and whether they need a PROXY header
    socket_mode: str
    tls: TlsConfig
    websocket: WebsocketConfig
    auth: AuthConfig
    quotas: QuotasConfig

    @property
    def listen(self) -> tuple[str, ...]:
        """All its addresses."""
        return tuple(address for address, _ in self.places)


@dataclass(frozen=True)
class Config:
    """The whole configuration of one node."""

    listen: tuple[str, ...] = option(
        ("localhost:1883",),
        "Addresses to accept MQTT on: HOST:PORT, mqtts://HOST:PORT (TLS), ws://HOST:PORT, wss://HOST:PORT (WebSocket), "
        "unix:/PATH; :1883 opens the node to the network, port 0 takes a free port. Addresses with limits, "
        "certificates or authentication of their own stand in tables [listeners.NAME], with a `listen` each.",
        ListenUrls(),
        flag="--listen",
    )
    proxied: bool = option(
        False, "Connections to `listen` begin with a PROXY header, as those to `proxy.listen` do.", Boolean()
    )
    socket_mode: str = option(
        "660", "Permissions of Unix sockets, in octal.", Name("[0-7]{3}", 'three octal digits such as "660"')
    )
    listen_shared: bool = option(
        False,
        "Share the addresses with other processes of the same user that have this set, too (SO_REUSEPORT): the kernel "
        "spreads new connections over them. `--workers` sets it by itself.",
        Boolean(),
    )
    links: tuple[LinkConfig, ...] = option(
        (),
        'Links (bridges) to other brokers, a table [links.NAME] each: url, topics (rules "FILTER out|in|both QOS '
        'LOCAL-PREFIX REMOTE-PREFIX"), version (5, 3.1.1 or 3.1), client_id, username, password or password_file, '
        "ca_file, certificate, key, insecure, keep_alive, session_expiry, max_inflight, retry (deploy/docs/LINKS.md).",
        Links(),
        reloadable=True,
    )
    tenants: tuple[TenantRule, ...] = option(
        (),
        "Tenants: groups of clients that don't see each other, by rules, a table [[tenants]] each; the first that fits "
        'counts: name (empty = no tenant; "*" = the part that the * of a condition stands for), and conditions: '
        "listener, user, certificate, server_name (of TLS), claim (CLAIM=PATTERN, of a token, row or entry). auth_of: "
        "the listener whose users and rules are the tenant's. Limits of the tenant at this node, 0 = none: "
        "max_connections, max_sessions, max_subscriptions, max_subscription_bytes, "
        "messages_per_second, bytes_per_second, max_retained_messages, max_retained_bytes; of all nodes: "
        "max_delayed_messages, max_queued_bytes. New "
        "conditions hold for new connections (deploy/docs/TENANTS.md).",
        TenantRules(),
        reloadable=True,
    )
    schemas: tuple[SchemaRule, ...] = option(
        (),
        "Schemas of payloads, a table [[schemas]] each: filter (topic filters), file (JSON Schema, Avro, a descriptor "
        'set of Protobuf as FILE#MESSAGE, or "sparkplug"), on_mismatch (refuse, mark with a user property, or route), '
        "route (with it: levels in front of the topic). The first that matches counts. A reload reads the files again "
        "(deploy/docs/SCHEMAS.md).",
        SchemaRules(),
        reloadable=True,
    )
    store: StoreConfig = StoreConfig()
    log: LogConfig = LogConfig()
    limits: LimitsConfig = LimitsConfig()
    mqtt: MqttConfig = MqttConfig()
    shared: SharedConfig = SharedConfig()
    cluster: ClusterConfig = ClusterConfig()
    analytics: AnalyticsConfig = AnalyticsConfig()
    events: EventsConfig = EventsConfig()
    metrics: MetricsConfig = MetricsConfig()
    http: HttpConfig = HttpConfig()
    proxy: ProxyConfig = ProxyConfig()
    oidc: OidcConfig = OidcConfig()
    otel: OtelConfig = OtelConfig()
    traces: TracesConfig = TracesConfig()
    audit: AuditConfig = AuditConfig()
    hooks: HooksConfig = HooksConfig()
    tls: TlsConfig = TlsConfig()
    websocket: WebsocketConfig = WebsocketConfig()
    auth: AuthConfig = AuthConfig()
    quotas: QuotasConfig = QuotasConfig()
    tables: tuple[tuple[str, tuple[tuple[str, object], ...]], ...] = ()  # of [listeners.NAME]: key -> value

    @property
    def listeners(self) -> tuple[ListenerConfig, ...]:
        """Every listener with its effective settings; the first is from `listen`."""
        own = tuple((address, self.proxied) for address in self.listen)
        found = [self._listener("default", own + tuple((address, True) for address in self.proxy.listen), {})]
        for name, values in self.tables:
            given = cast(dict[str, Any], dict(values))
            places = tuple((address, given.get("proxied", self.proxied)) for address in given.get("listen", ()))
            found.append(self._listener(name, places, given))
        return tuple(found)

    def _listener(self, name: str, places: tuple[tuple[str, bool], ...], given: Mapping[str, Any]) -> ListenerConfig:
        sections = {}
        for section in PER_LISTENER:
            own = {key.rpartition(".")[2]: value for key, value in given.items() if key.startswith(section + ".")}
            sections[section] = replace(getattr(self, section), **own)
        return ListenerConfig(name, places, given.get("socket_mode", self.socket_mode), **sections)


PER_LISTENER = ("tls", "websocket", "auth", "quotas")  # sections whose keys a [listeners.NAME] table may have
