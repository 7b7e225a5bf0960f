"""The schema of the configuration: every setting with type, default, one sentence and the kind of value.

A key is one field of a dataclass below. Everything else is derived from the fields (keys.py): TOML keys (`[limits]
max_inflight`), environment variables (`FLOCKMQ_LIMITS_MAX_INFLIGHT`), flags, `--set limits.max_inflight=...`, and the
sample `deploy/flockmq.toml`. Fields marked `reloadable` may change on SIGHUP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from .declared_group import DeclaredGroup, DeclaredGroups
from .kinds import (
    Addresses,
    Boolean,
    Choice,
    Duration,
    FilePath,
    Integer,
    Kind,
    ListenUrls,
    Name,
    Networks,
    PacketSize,
    PythonObjects,
    Rate,
    RedisUrlKind,
    Share,
    Size,
    StoreUrl,
    Text,
    Texts,
    TopicFilters,
    Workers,
)
from .ldap_roles import LdapRole, LdapRoles
from .link import LinkConfig, Links
from .placeholders import GroupFilter, LdapFilter, RulesQuery, SqlQuery
from .schema_rule import SchemaRule, SchemaRules
from .sql_url import SqlUrlKind
from .tenants import TenantRule, TenantRules
from .topic_rules import AutoSubscription, AutoSubscriptions, RewriteRule, RewriteRules

T = TypeVar("T")

MIB = 1 << 20
COUNT_MAX = 2**31 - 1
SIZE_MAX = 1 << 40
DAY = 86400.0
CENTURY = 36_500 * DAY


def option(default: T, help: str, kind: Kind, *, reloadable: bool = False, flag: str = "") -> T:  # noqa: A002
    """A field with everything that is derived from it; typed as its default so that mypy checks the annotation."""
    metadata = {"help": help, "kind": kind, "reloadable": reloadable, "flag": flag}
    return field(default=default, metadata=metadata)


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
class MetricsConfig:
    """Figures of your choice, beside those that each node has, at /metrics and in the API."""

    topics: tuple[str, ...] = option(
        (),
        "Topic filters whose messages and bytes are counted, at most 100.",
        TopicFilters(100),
        reloadable=True,
    )


@dataclass(frozen=True)
class HttpConfig:
    """HTTP: /healthz (the process works), /readyz (the node accepts clients), /metrics (for Prometheus), the API below
    /api/v1 and the web page. API and page are open to this machine only, until there are tokens."""

    listen: tuple[str, ...] = option(
        (),
        "Addresses to listen on, HOST:PORT each, after https:// for TLS with the certificate of [tls]; none "
        "unless given.",
        Addresses(may_be_empty=True, schemes=("http", "https")),
        flag="--http",
    )
    drain: float = option(
        0.0,
        "Seconds at a stop for which /readyz returns 503 while clients are still accepted and served; load balancers "
        "that check every two seconds need about five.",
        Duration(0, 3600),
        reloadable=True,
    )

    tokens_file: str = option(
        "",
        "File of the tokens that open the API and the page, also to others than this machine; `flockmq token` writes "
        "it.",
        FilePath(),
    )
    first_password_file: str = option(
        "",
        "File with the password of the operator `admin`, for a first login while there are no operators.",
        FilePath(),
    )
    login_seconds: float = option(
        8 * 3600.0,
        "Seconds after which an operator who has logged in to the page has to log in again.",
        Duration(60, 30 * 86_400),
        reloadable=True,
    )
    open_to_local: bool = option(
        False,
        "Whether programs of this machine may read over HTTP without credentials, although there are operators or "
        "tokens.",
        Boolean(),
        reloadable=True,
    )
    public_url: str = option(
        "",
        "URL of the page as browsers know it, for a reverse proxy; empty = the one that the browser names.",
        Name(r"(https?://[^/\s]+)?", 'a URL without a path, such as "https://broker.example.com"'),
    )
    metrics_token: bool = option(False, "Whether /metrics needs a token, too.", Boolean(), reloadable=True)
    trusted_proxies: tuple[str, ...] = option(
        (),
        "Networks of reverse proxies, before the HTTP server and before listeners of WebSocket: the last address in "
        "Forwarded or X-Forwarded-For that is not theirs is the client's.",
        Networks(),
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
class OtelConfig:
    """The metrics of /metrics, sent to an OpenTelemetry collector (pip install 'flockmq[otel]'). OpenTelemetry's
    library also reads its own variables, such as OTEL_METRIC_EXPORT_INTERVAL (milliseconds)."""

    endpoint: str = option(
        "",
        "Address of a collector for OTLP over HTTP, such as http://collector:4318; empty = nothing is sent.",
        Name(r"(https?://\S+)?", 'a URL such as "http://collector:4318"'),
    )


@dataclass(frozen=True)
class TracesConfig:
    """Spans of messages, sent to an OpenTelemetry collector (pip install 'flockmq[otel]'): of messages whose user
    property `traceparent` says that their publisher records spans, too (deploy/docs/TRACES.md)."""

    endpoint: str = option(
        "",
        "Address of a collector for OTLP over HTTP, such as http://collector:4318; empty = no spans.",
        Name(r"(https?://\S+)?", 'a URL such as "http://collector:4318"'),
    )
    sample: float = option(
        0.0,
        "Share of the messages from clients without traceparent that get a trace, from 0 to 1: 0.001 is one of 1000.",
        Share(),
        reloadable=True,
    )
    steps_per_second: int = option(
        1000,
        "Most steps of messages that the node records; the last half only for traces that have begun. Messages above "
        "it are delivered without spans.",
        Integer(10, 100_000),
        reloadable=True,
    )


@dataclass(frozen=True)
class OidcConfig:
    """OpenID Connect: operators sign in to the page at an identity provider (code flow with PKCE). Its redirect URI is
    URL/api/v1/login/oidc/callback."""

    issuer: str = option(
        "",
        "Issuer, such as https://login.example.com/realms/iot; empty = operators don't sign in this way.",
        Name(r"(https?://\S+)?", 'a URL such as "https://login.example.com"'),
    )
    client_id: str = option("flockmq", "Client id of this broker at the issuer.", Name(r"\S+", "a client id"))
    secret_file: str = option("", "File of the client secret; without it the client is a public one.", FilePath())
    scope: str = option("openid profile email", "Scopes of the request.", Name(r"openid( \S+)*", '"openid" and others'))
    claim: str = option("groups", "Claim of the ID token with the groups of an operator.", Name(r"\S+", "a claim"))
    roles: tuple[str, ...] = option(
        (),
        "Roles of groups; the first group that an operator is in counts, and an operator of none is refused.",
        Texts(
            r"[^=]+=(viewer|operator|admin)(:[^:]+)?",
            '"GROUP=ROLE" or "GROUP=ROLE:TENANT", where the role is viewer, operator or admin',
        ),
    )


@dataclass(frozen=True)
class AuditConfig:
    """The audit log: changes by API, page, commands and reloads, each with its author and its result."""

    max_bytes: int = option(
        8 * MIB,
        "Bytes of the records that are kept, of all nodes; the oldest are dropped first.",
        Size(64 * 1024, SIZE_MAX),
        reloadable=True,
    )
    seconds: float = option(
        90 * 86_400.0, "Seconds for which a record is kept.", Duration(60, CENTURY), reloadable=True
    )
    publish: bool = option(
        False,
        "Whether each record is published to $SYS/broker/events/audit, too. Access rules decide over its readers: "
        "without rules every client may read it.",
        Boolean(),
        reloadable=True,
    )
    syslog: str = option(
        "",
        "Address of a syslog server that gets each record, too: unix:/dev/log, udp://HOST:PORT or tcp://HOST:PORT; "
        "empty = none.",
        Name(r"(unix:/.+|(udp|tcp)://\S+:\d+)?", '"unix:/dev/log", "udp://HOST:PORT" or "tcp://HOST:PORT"'),
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
class AuthConfig:
    """Authentication and access rules. Without any of these, all clients of this machine have access, and no others can
    connect."""

    methods: tuple[str, ...] = option(
        ("password", "SCRAM-SHA-256", "OAUTHBEARER"),
        "Ways to present credentials: password = in CONNECT (tokens too); the others are authentication methods of "
        "MQTT 5.0. Methods of hooks are always accepted.",
        Texts("password|SCRAM-SHA-256|OAUTHBEARER", "of password, SCRAM-SHA-256 and OAUTHBEARER"),
        reloadable=True,
    )
    allow_anonymous: bool = option(
        False,
        "Accept clients without credentials. Otherwise a listener that other machines can reach needs one of the "
        "authentication methods below.",
        Boolean(),
        reloadable=True,
    )
    password_file: str = option(
        "",
        "File of users and password hashes: `flockmq passwd FILE USER` writes it; Mosquitto's files work, too.",
        FilePath(),
        reloadable=True,
        flag="--password-file",
    )
    acl_file: str = option(
        "",
        "File of access rules, in Mosquitto's format; access that no rule allows is denied.",
        FilePath(),
        reloadable=True,
        flag="--acl-file",
    )
    jwt_secret_file: str = option(
        "", "File of the secret that signs tokens (JWT, HS256) given as passwords.", FilePath(), reloadable=True
    )
    jwt_keys: str = option(
        "",
        "Public keys that verify tokens (JWT) given as passwords: a PEM file, a JWKS file, or its https URL.",
        FilePath(),
        reloadable=True,
    )
    jwt_audience: str = option(
        "", "Required `aud` of tokens; empty = tokens with an `aud` are refused.", Text(), reloadable=True
    )
    jwt_issuer: str = option("", "Required `iss` of tokens; empty = any.", Text(), reloadable=True)
    jwt_username_claim: str = option("sub", "The claim of a token that names the user.", Text(), reloadable=True)
    close_on_password_change: bool = option(
        True,
        "When a password changes in the file or in the store, close the connections that were opened with the one "
        "before. Otherwise they last until their clients reconnect.",
        Boolean(),
        reloadable=True,
    )
    users: bool = option(
        False,
        "Accept the users of the store, which are changed while nodes run: `flockmq users`, or the page.",
        Boolean(),
        reloadable=True,
    )
    sql_url: str = option(
        "",
        "Database with users: postgresql://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE (MariaDB too) or "
        "sqlite:PATH. Beyond this machine TLS with a verified certificate is required, unless an option of the URL "
        "says otherwise (deploy/docs/ACCESS.md).",
        SqlUrlKind(),
        reloadable=True,
    )
    sql_password_file: str = option(
        "", "File of the password of its user, in place of one in the URL.", FilePath(), reloadable=True
    )
    sql_user_query: str = option(
        "",
        "Query for the row of a user: SELECT password_hash, ... WHERE username = ${username}. Placeholders are "
        "username, client_id, address and listener; columns password_hash, username, rules, roles, disabled and claims "
        "of tenants' rules.",
        SqlQuery(),
        reloadable=True,
    )
    sql_rules_query: str = option(
        "",
        "Query for the rules of a user, if they are not in its row: rows of access (read, write, readwrite or deny) "
        "and topic filter; or, with ${access} (1 = read, 2 = publish, 4 = subscribe) in it, of topic filters.",
        RulesQuery(),
        reloadable=True,
    )
    sql_timeout: float = option(
        2.0, "Seconds that the database may take for a reply.", Duration(0.1, 30), reloadable=True
    )
    sql_remember: float = option(
        60.0, "Seconds for which the row of a user is remembered.", Duration(0, DAY), reloadable=True
    )
    ldap_url: str = option(
        "",
        "LDAP server or Active Directory with users: ldap://HOST, ldaps://HOST or ldapi://%2FPATH; several, separated "
        "by spaces, are tried in turn.",
        Name(r"(ldap[si]?://[!-~]+( ldap[si]?://[!-~]+)*)?", 'a URL such as "ldaps://ldap.example"'),
        reloadable=True,
    )
    ldap_start_tls: bool = option(True, "Encrypt connections to ldap:// by StartTLS.", Boolean(), reloadable=True)
    ldap_ca_file: str = option(
        "",
        "PEM file with the authorities that sign the certificates of the servers; empty = the system's.",
        FilePath(),
        reloadable=True,
    )
    ldap_bind_dn: str = option(
        "", "Distinguished name that looks up users; empty = without authentication.", Text(), reloadable=True
    )
    ldap_password_file: str = option("", "File of its password.", FilePath(), reloadable=True)
    ldap_base: str = option("", "Distinguished name below which users are searched.", Text(), reloadable=True)
    ldap_filter: str = option(
        "(uid=${username})",
        "Filter that finds the entry of a user; values are escaped. Active Directory: (sAMAccountName=${username}).",
        LdapFilter(),
        reloadable=True,
    )
    ldap_username: str = option(
        "uid",
        "Attribute of the entry that is the user's name: directories compare without case. Active Directory: "
        "sAMAccountName.",
        Name("[A-Za-z][A-Za-z0-9;-]{0,100}", "the name of an attribute"),
        reloadable=True,
    )
    ldap_group_attribute: str = option(
        "memberOf",
        "Attribute of the entry with the distinguished names of its groups; empty = none.",
        Name("([A-Za-z][A-Za-z0-9;-]{0,100})?", "the name of an attribute"),
        reloadable=True,
    )
    ldap_group_base: str = option(
        "", "Distinguished name below which groups are searched; empty = no search.", Text(), reloadable=True
    )
    ldap_group_filter: str = option(
        "(member=${dn})",
        "Filter that finds the groups of a user: ${dn} is its distinguished name.",
        GroupFilter(),
        reloadable=True,
    )
    ldap_roles: tuple[LdapRole, ...] = option(
        (),
        "Roles of the members of groups, a table [[auth.ldap_roles]] each: group (its distinguished name; "
        '"*" = every user) and role.',
        LdapRoles(),
        reloadable=True,
    )
    ldap_timeout: float = option(
        3.0, "Seconds that the directory may take for a reply.", Duration(0.1, 30), reloadable=True
    )
    ldap_remember: float = option(
        60.0, "Seconds for which a right password is remembered.", Duration(0, DAY), reloadable=True
    )
    http_url: str = option(
        "",
        "URL of an HTTP back end that authenticates clients: JSON by POST, JSON in return (deploy/docs/ACCESS.md). "
        "Empty = none.",
        Name(r"(https?://\S+)?", 'a URL such as "https://127.0.0.1:8443/mqtt"'),
        reloadable=True,
    )
    http_timeout: float = option(2.0, "Timeout of a request, in seconds.", Duration(0.05, 30), reloadable=True)
    http_remember: float = option(
        60.0, "Seconds for which an accepted client is remembered.", Duration(0, DAY), reloadable=True
    )
    remember: float = option(
        300.0,
        "Seconds for which a right password is remembered, so that reconnecting costs no hashing. 0 = not at all.",
        Duration(0, DAY),
        reloadable=True,
    )
    remember_stored: float = option(
        30 * DAY,
        "Seconds for which the store keeps a proof that a password was right, so that a fleet that comes back after a "
        "restart costs little hashing (deploy/docs/ACCESS.md). 0 = no proofs.",
        Duration(0, 365 * DAY),
        reloadable=True,
    )
    failure_delay: float = option(
        0.5,
        "Seconds until wrong credentials are answered; doubled for each further failure of an address, up to 8. "
        "0 = at once.",
        Duration(0, 8),
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
