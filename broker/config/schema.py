"""The one configuration of a node: what can be set, where it may stand, and how it is checked.

A key is one field of a dataclass below: name, type, default, one sentence, and the kind of value. Everything else is
derived from the fields: TOML keys (`[limits] max_inflight`), environment variables (`FLOCKMQ_LIMITS_MAX_INFLIGHT`),
flags, `--set limits.max_inflight=...`, and the sample `deploy/flockmq.toml`.

Rules:
- Flags win over the environment, the environment over the file, the file over the defaults.
- Only this file reads the environment.
- Whatever is wrong raises `ConfigError` with one line: key, value, where it stood, what was expected.
- Fields marked `reloadable` may change on SIGHUP; `diff` sorts a change into those that may and those that may not.
"""

import difflib
import os
import re
import textwrap
import tomllib
from collections.abc import Container, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from broker.config.kinds import (
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
    PythonObjects,
    Rate,
    RedisUrlKind,
    Size,
    StoreUrl,
    Text,
    Texts,
    TopicFilters,
)
from broker.config.kinds import split_address as split_address
from broker.config.listen_url import ListenUrl
from broker.errors import ConfigError

T = TypeVar("T")

PREFIX = "FLOCKMQ_"
FILE_VARIABLE = "FLOCKMQ_CONFIG"
# Names with our prefix that are not ours to judge: the build's, the tests', and what Kubernetes puts into every
# container beside a Service called flockmq or flockmq-something.
FOREIGN_VARIABLE = re.compile(
    r"FLOCKMQ_(CONFIG|SANITIZE|TEST_.*|(.*_)?SERVICE_(HOST|PORT(_.*)?)|(.*_)?PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)"
)
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
    """Where sessions, queues and retained messages live."""

    url: str = option(
        "sqlite:flockmq.db",
        "Where state is kept: sqlite:PATH survives the process, memory does not.",
        StoreUrl(),
        flag="--store",
    )
    sync: str = option(
        "full",
        "When a message counts as kept: full = on the disk, survives loss of power; "
        "normal = handed to the kernel, survives kill -9.",
        Choice(("full", "normal")),
        flag="--sync",
    )


@dataclass(frozen=True)
class LogConfig:
    """What the node tells its operator, on standard error."""

    level: str = option(
        "info",
        "The least important lines that are still written.",
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
    """What one client may cost, so that no client can exhaust the node."""

    max_packet_size: int = option(
        2 * MIB,
        "Bytes of the largest packet accepted, header included; a larger one ends its connection.",
        Size(128, 268_435_455 + 5),
        reloadable=True,
    )
    max_topic_levels: int = option(200, "Levels a topic name or filter may have.", Integer(1, 65_536), reloadable=True)
    max_inflight: int = option(
        100,
        "QoS 1 and 2 messages on their way to one session and not yet acknowledged.",
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
        "What goes when a session's queue is full: drop-new = the message that arrives, drop-old = the oldest.",
        Choice(("drop-new", "drop-old")),
        reloadable=True,
    )
    max_awaiting_release: int = option(
        65_535,
        "QoS 2 messages from one session that wait for its PUBREL; their bytes count as max_queued_bytes do.",
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
        10.0, "Seconds a new connection may take to send CONNECT.", Duration(0.1, DAY), reloadable=True
    )
    max_keep_alive: float = option(
        0.0,
        "Seconds; a client with a longer keep alive, or none, is held to this one. 0 = no cap.",
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
        100_000, "Subscriptions of one session; above, filters are refused.", Integer(1, COUNT_MAX), reloadable=True
    )
    max_retained_messages: int = option(
        2_000_000,
        "Topic names with a retained message; above, messages for new ones are not retained.",
        Integer(0, COUNT_MAX),
        reloadable=True,
    )
    max_retained_bytes: int = option(
        1024 * MIB, "Bytes of all retained messages; above, more are not retained.", Size(0, SIZE_MAX), reloadable=True
    )
    max_uncommitted_bytes: int = option(
        32 * MIB,
        "Bytes handed to the store and not yet committed; above, publishers are not read.",
        Size(64 * 1024, SIZE_MAX),
        reloadable=True,
    )


@dataclass(frozen=True)
class MqttConfig:
    """Where the standard leaves a choice."""

    long_client_ids: bool = option(
        False, "Accept client identifiers of more than 23 characters from MQTT 3.1 clients.", Boolean(), reloadable=True
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
        "Seconds; a persistent session whose client stays away this long ends. 0 = never.",
        Duration(0, CENTURY),
        reloadable=True,
    )


@dataclass(frozen=True)
class ClusterConfig:
    """Many nodes as one broker: they share nothing but a Redis. Without `redis` the node is alone."""

    redis: str = option(
        "",
        "Where the nodes keep state together: redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss:// for TLS, unix:///PATH, "
        "or redis+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]; store.url is then unused.",
        RedisUrlKind(),
        flag="--redis",
    )
    node_name: str = option(
        "",
        "What logs and `flockmq cluster status` call this node; empty = the host's name.",
        Name("[A-Za-z0-9._-]{0,64}", "up to 64 letters, digits, dots, underscores and hyphens"),
        flag="--node-name",
    )
    workers: int = option(
        1,
        "Nodes to start on this machine, one a core, which share the addresses; more than one needs redis.",
        Integer(1, 256),
        flag="--workers",
    )
    prefix: str = option(
        "mq:",
        "Begins every key and channel in Redis; clusters with different prefixes can share one.",
        Name("[A-Za-z0-9:._/-]{1,64}", "1 to 64 letters, digits and characters of :._/-"),
    )
    lease: float = option(
        6.0,
        "Seconds without a heartbeat after which the other nodes take a node for dead.",
        Duration(0.5, 600),
    )
    replicas: int = option(
        0,
        "Replicas of Redis that must have a message before it is acknowledged (WAIT).",
        Integer(0, 16),
    )
    timeout: float = option(2.0, "Seconds that Redis may be silent before it counts as away.", Duration(0.1, 600))
    log_bytes: int = option(
        64 * MIB,
        "Bytes of a node's log in Redis, from which other nodes read what they missed.",
        Size(64 * 1024, SIZE_MAX),
    )
    log_seconds: float = option(
        60.0,
        "Seconds for which a node's log is kept.",
        Duration(1, DAY),
    )


@dataclass(frozen=True)
class AnalyticsConfig:
    """The log of messages for Spark (`flockmq analytics`), in the cluster's Redis. Without `topics` there is none."""

    topics: tuple[str, ...] = option(
        (),
        'Topic filters of the messages that are logged: "#" is all but those that begin with $.',
        TopicFilters(),
        reloadable=True,
        flag="--analytics",
    )
    log_bytes: int = option(
        256 * MIB,
        "Bytes that the log of messages of a node may take in Redis; the oldest go first, read or not.",
        Size(1 * MIB, SIZE_MAX),
        reloadable=True,
    )
    log_seconds: float = option(
        3600.0,
        "Seconds for which logged messages are kept in Redis.",
        Duration(1, CENTURY),
        reloadable=True,
    )
    max_waiting_bytes: int = option(
        32 * MIB,
        "Bytes of the log that may wait for a slow Redis; past it messages of QoS 0 are not logged, and counted.",
        Size(64 * 1024, SIZE_MAX),
        reloadable=True,
    )


@dataclass(frozen=True)
class HttpConfig:
    """Over HTTP: /healthz (the process works), /readyz (send it clients), /metrics (for Prometheus), the API below
    /api/v1 and the web page. API and page are open to this machine only, until there are tokens."""

    listen: tuple[str, ...] = option(
        (),
        "Addresses to answer on, HOST:PORT each, with https:// before it for TLS with the certificate of [tls]; none "
        "unless given.",
        Addresses(may_be_empty=True, schemes=("http", "https")),
        flag="--http",
    )
    drain: float = option(
        0.0,
        "Seconds at a stop for which /readyz says no while clients are still served and let in; load balancers that "
        "look every two seconds need about five.",
        Duration(0, 3600),
        reloadable=True,
    )

    tokens_file: str = option(
        "",
        "File of the tokens that open the API and the page, also to others than this machine; `flockmq token` writes "
        "it.",
        FilePath(),
    )
    metrics_token: bool = option(False, "Whether /metrics takes a token, too.", Boolean(), reloadable=True)


@dataclass(frozen=True)
class ProxyConfig:
    """Clients that come through a load balancer which tells their addresses by the PROXY protocol, version 1 or 2."""

    listen: tuple[str, ...] = option(
        (),
        "Addresses to accept MQTT from load balancers on, as in `listen`: every connection must begin with a PROXY "
        "header there. `listen` takes none.",
        ListenUrls(may_be_empty=True),
        flag="--proxy-listen",
    )
    trusted: tuple[str, ...] = option(
        ("127.0.0.0/8", "::1/128"),
        "Networks that the load balancers are in; whoever else connects to `proxy.listen` is closed.",
        Networks(),
    )


@dataclass(frozen=True)
class OtelConfig:
    """The figures of /metrics, sent to an OpenTelemetry collector (pip install 'flockmq[otel]')."""

    endpoint: str = option(
        "",
        "Where a collector takes OTLP over HTTP, such as http://collector:4318; empty = nothing is sent.",
        Name(r"(https?://\S+)?", 'a URL such as "http://collector:4318"'),
    )
    interval: float = option(15.0, "Seconds between exports.", Duration(0.1, DAY))


@dataclass(frozen=True)
class HooksConfig:
    """Your own Python, asked about clients and messages: subclasses of `flockmq.hooks.Hooks`."""

    load: tuple[str, ...] = option(
        (),
        "Hooks as MODULE:OBJECT each, asked in this order; a class is called to make one.",
        PythonObjects(),
        flag="--hooks",
    )
    timeout: float = option(
        5.0, "Seconds that a call of an `async def` may take; then it counts as a refusal.", Duration(0.01, 3600)
    )


@dataclass(frozen=True)
class TlsConfig:
    """Certificates, for listeners and `http.listen` addresses with TLS. Files are read again on SIGHUP and when they
    change."""

    certificate: str = option(
        "", "PEM file with the certificate, and those that vouch for it after it.", FilePath(), reloadable=True
    )
    key: str = option("", "PEM file with its private key, without a password.", FilePath(), reloadable=True)
    certificates: tuple[str, ...] = option(
        (),
        "Further certificates, chosen by the name that a client asks for: PEM files that have the key too, or "
        "directories of NAME.pem and NAME.key, or of NAME/fullchain.pem and NAME/privkey.pem as certbot makes them.",
        Texts(r"[^\0]+", "paths of files or directories"),
        reloadable=True,
    )
    client_certificate: str = option(
        "none",
        "Whether clients show a certificate of `tls.client_ca`.",
        Choice(("none", "optional", "required")),
        reloadable=True,
    )
    client_ca: str = option(
        "", "PEM file with the authorities that sign clients' certificates.", FilePath(), reloadable=True
    )
    client_crl: str = option(
        "",
        "PEM file with their lists of revoked certificates; once one is named, every authority needs one that is "
        "not out of date.",
        FilePath(),
        reloadable=True,
    )
    username_from: str = option(
        "none",
        "What of a client's certificate is its user name: none, cn = its common name, subject = all of its subject.",
        Choice(("none", "cn", "subject")),
        reloadable=True,
    )
    min_version: str = option(
        "1.2", "The oldest version of TLS that is spoken.", Choice(("1.2", "1.3")), reloadable=True
    )


@dataclass(frozen=True)
class WebsocketConfig:
    """MQTT over WebSocket, for browsers: listeners with ws:// and wss://."""

    path: str = option(
        "/mqtt",
        "The path that is served; others get 404.",
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
    """Who may connect, and who may publish and read what. With nothing here everybody on this machine may, and nobody
    else can."""

    allow_anonymous: bool = option(
        False,
        "Let clients in that show no credentials. Without it a listener that others can reach needs one of the ways "
        "to authenticate below.",
        Boolean(),
        reloadable=True,
    )
    password_file: str = option(
        "",
        "File of users and hashes of their passwords: `flockmq passwd FILE USER` writes it; Mosquitto's will do, too.",
        FilePath(),
        reloadable=True,
        flag="--password-file",
    )
    acl_file: str = option(
        "",
        "File of rules of access, in Mosquitto's format: what it does not allow is denied.",
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
    jwt_audience: str = option("", "What `aud` of tokens must be; empty = they have none.", Text(), reloadable=True)
    jwt_issuer: str = option("", "What `iss` of tokens must be; empty = anything.", Text(), reloadable=True)
    jwt_username_claim: str = option("sub", "The claim of a token that names the user.", Text(), reloadable=True)
    redis: bool = option(
        False,
        "Let users in that are kept in the cluster's Redis: `flockmq users` makes them.",
        Boolean(),
        reloadable=True,
    )
    http_url: str = option(
        "",
        "Where to ask over HTTP who a client is: gets JSON by POST, answers with JSON (deploy/docs/ACCESS.md). Empty = "
        "nowhere.",
        Name(r"(https?://\S+)?", 'a URL such as "https://127.0.0.1:8443/mqtt"'),
        reloadable=True,
    )
    http_timeout: float = option(2.0, "Seconds that it may take to answer.", Duration(0.05, 30), reloadable=True)
    http_remember: float = option(
        60.0, "Seconds for which a client that it let in is not asked for again.", Duration(0, DAY), reloadable=True
    )
    remember: float = option(
        300.0,
        "Seconds for which a right password is remembered, so that who comes back costs no hashing. 0 = none is.",
        Duration(0, DAY),
        reloadable=True,
    )
    failure_delay: float = option(
        0.5,
        "Seconds until wrong credentials are answered; twice as long for each further one from an address, up to 8. "
        "0 = at once.",
        Duration(0, 8),
        reloadable=True,
    )


@dataclass(frozen=True)
class QuotasConfig:
    """What clients may use of the node. Who goes past a rate is read later, so that TCP slows it down; nothing is
    dropped."""

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
    max_connections_per_user: int = option(
        0, "Connections of a user to this node at a time; 0 = no limit.", Integer(0, COUNT_MAX), reloadable=True
    )
    flapping: str = option(
        "",
        'How often a client may come back: "15 in 60 s"; who does more often is refused for as long. Empty = no limit.',
        Rate(),
        reloadable=True,
    )


@dataclass(frozen=True)
class ListenerConfig:
    """What one listener is: the `[listeners.NAME]` table, over the sections of the same names."""

    name: str  # "default" for that of `listen`
    places: tuple[tuple[str, bool], ...]  # addresses, and whether proxies speak there
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
        ("127.0.0.1:1883",),
        "Addresses to accept MQTT on: HOST:PORT, mqtts://HOST:PORT (TLS), ws://HOST:PORT, wss://HOST:PORT (WebSocket), "
        "unix:/PATH; 0.0.0.0:1883 opens the node to the network, port 0 takes a free port. Addresses with limits, "
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
        "Share the addresses with other processes of the same user that say so too (SO_REUSEPORT): the kernel spreads "
        "new connections over them. `--workers` does it by itself.",
        Boolean(),
    )
    store: StoreConfig = StoreConfig()
    log: LogConfig = LogConfig()
    limits: LimitsConfig = LimitsConfig()
    mqtt: MqttConfig = MqttConfig()
    cluster: ClusterConfig = ClusterConfig()
    analytics: AnalyticsConfig = AnalyticsConfig()
    http: HttpConfig = HttpConfig()
    proxy: ProxyConfig = ProxyConfig()
    otel: OtelConfig = OtelConfig()
    hooks: HooksConfig = HooksConfig()
    tls: TlsConfig = TlsConfig()
    websocket: WebsocketConfig = WebsocketConfig()
    auth: AuthConfig = AuthConfig()
    quotas: QuotasConfig = QuotasConfig()
    tables: tuple[tuple[str, tuple[tuple[str, object], ...]], ...] = ()  # of [listeners.NAME]: key -> value

    @property
    def listeners(self) -> tuple[ListenerConfig, ...]:
        """Every listener with what holds for it; the first is that of `listen`."""
        own = tuple((address, self.proxied) for address in self.listen)
        found = [self._listener("default", own + tuple((address, True) for address in self.proxy.listen), {})]
        for name, values in self.tables:
            given = cast(dict[str, Any], dict(values))
            places = tuple((address, given.get("proxied", self.proxied)) for address in given["listen"])
            found.append(self._listener(name, places, given))
        return tuple(found)

    def _listener(self, name: str, places: tuple[tuple[str, bool], ...], given: Mapping[str, Any]) -> ListenerConfig:
        sections = {}
        for section in PER_LISTENER:
            own = {key.rpartition(".")[2]: value for key, value in given.items() if key.startswith(section + ".")}
            sections[section] = replace(getattr(self, section), **own)
        return ListenerConfig(name, places, given.get("socket_mode", self.socket_mode), **sections)


PER_LISTENER = ("tls", "websocket", "auth", "quotas")  # sections whose keys a [listeners.NAME] table may have ...
TOP_OF_LISTENER = ("listen", "proxied", "socket_mode")  # ... and keys outside of sections


def environment() -> dict[str, str]:
    """The process's environment: for the processes that it starts, and for what others than we have set in it."""
    return dict(os.environ)


class Key(NamedTuple):
    """One configuration key, as derived from its field."""

    name: str  # "limits.max_inflight", or "listen" at the top
    section: str  # "limits", or "" at the top
    field: Field[Any]

    @property
    def kind(self) -> Kind:
        return cast(Kind, self.field.metadata["kind"])

    @property
    def help(self) -> str:
        return cast(str, self.field.metadata["help"])

    @property
    def reloadable(self) -> bool:
        return cast(bool, self.field.metadata["reloadable"])

    @property
    def flag(self) -> str:
        return cast(str, self.field.metadata["flag"])

    @property
    def variable(self) -> str:
        return PREFIX + self.name.replace(".", "_").upper()

    def of(self, config: Config) -> object:
        """This key's value in `config`."""
        owner = getattr(config, self.section) if self.section else config
        return getattr(owner, self.field.name)


def _keys() -> Iterator[Key]:
    for top in fields(Config):
        if "kind" in top.metadata:
            yield Key(top.name, "", top)
        elif top.name != "tables":
            for inner in fields(cast(Any, top.default)):
                yield Key(f"{top.name}.{inner.name}", top.name, inner)


KEYS = {key.name: key for key in _keys()}
SECTIONS: dict[str, type[Any]] = {
    key.section: type(getattr(Config, key.section)) for key in KEYS.values() if key.section
}
LISTENER_KEYS = {name: key for name, key in KEYS.items() if name in TOP_OF_LISTENER or key.section in PER_LISTENER}
TABLES = "listeners."  # begins the full name of a key of a [listeners.NAME] table
LISTENER_NAME = re.compile(r"[a-z0-9_-]{1,32}", re.ASCII)
VARIABLES = {key.variable: key for key in KEYS.values()}


class Loaded(NamedTuple):
    """A configuration and, for each key, where its value came from ("default", "file.toml:3", ...)."""

    config: Config
    origins: dict[str, str]


def load(
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Config:
    """The effective configuration. Raises ConfigError."""
    return trace(overrides, env, file).config


def trace(
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Loaded:
    """As `load`, with the origin of every value.

    `overrides` maps key names to what the flags said (text, or a list of text); `env` is the process's environment
    unless given; without `file`, FLOCKMQ_CONFIG may name one. Raises ConfigError.
    """
    environment = os.environ if env is None else env
    path = file or environment.get(FILE_VARIABLE)
    values: dict[str, object] = {}
    origins = dict.fromkeys(KEYS, "default")
    document = _Document(Path(path)) if path else None
    sources = (
        *(document.keys() if document else ()),
        *_from_environment(environment),
        *_from_overrides(overrides or {}),
    )
    for key, value, origin in sources:
        values[key.name] = value
        origins[key.name] = origin
    tables: dict[str, dict[str, object]] = {}
    listeners = document.listeners() if document else ()
    for name, key, value, origin in (*listeners, *_tables_from_overrides(overrides or {})):
        tables.setdefault(name, {})[key.name] = value
        origins[f"listeners.{name}.{key.name}"] = origin
    frozen = tuple((name, tuple(table.items())) for name, table in tables.items())
    loaded = Loaded(replace(_build(values), tables=frozen), origins)
    _check(loaded)
    return loaded


def _check(loaded: Loaded) -> None:
    """What concerns more than one key."""
    _check_listeners(loaded)
    cluster = loaded.config.cluster
    if not cluster.redis and any(listener.auth.redis for listener in loaded.config.listeners):
        raise ConfigError(
            f"auth.redis = true ({loaded.origins['auth.redis']}): users are in the cluster's Redis, and there is none",
            "name one with --redis redis://HOST:PORT, or keep users in a file: `flockmq passwd`",
        )
    if cluster.workers > 1 and not cluster.redis:
        raise ConfigError(
            f"cluster.workers = {cluster.workers} ({loaded.origins['cluster.workers']}): "
            "more than one worker needs a Redis, which holds what they share",
            "name one with --redis redis://HOST:PORT, or start one worker",
        )
    topics = loaded.config.analytics.topics
    if topics and not cluster.redis:
        raise ConfigError(
            f"analytics.topics = {list(topics)} ({loaded.origins['analytics.topics']}): "
            "messages are logged into a Redis, and there is none",
            "name one with --redis redis://HOST:PORT; one node with a Redis is a cluster, too",
        )


def _check_listeners(loaded: Loaded) -> None:
    for name, table in loaded.config.tables:
        if "listen" not in dict(table):
            raise ConfigError(f"listeners.{name} has no addresses", 'give it `listen = ["HOST:PORT"]`')
    places: set[object] = set()
    is_secure = False
    for listener in loaded.config.listeners:
        prefix = "" if listener.name == "default" else f"listeners.{listener.name}."
        urls = [ListenUrl.parse(address) for address in listener.listen]
        for url in urls:
            if url.place and url.place in places:
                raise ConfigError(f"{prefix}listen: {url} is listened on twice", "each address belongs to one listener")
            places.add(url.place)
        _check_tls(listener, prefix, any(url.secure for url in urls))
        is_secure = is_secure or any(url.secure for url in urls)
        for section, used in (("tls", any(url.secure for url in urls)), ("websocket", any(u.websocket for u in urls))):
            vain = [key for key in loaded.origins if prefix and key.startswith(f"{prefix}{section}.")]
            if vain and not used:  # what is asked for is not to be left out silently
                raise ConfigError(
                    f"{vain[0]} ({loaded.origins[vain[0]]}): no address of this listener is one for it",
                    f"write {'mqtts://HOST:PORT' if section == 'tls' else 'ws://HOST:PORT'} in {prefix}listen",
                )

    if loaded.config.tls.client_certificate != "none" and not is_secure:
        raise ConfigError(
            f"tls.client_certificate ({loaded.origins['tls.client_certificate']}): no address of any listener has TLS",
            "write mqtts://HOST:PORT in `listen`",
        )


def _check_tls(listener: ListenerConfig, prefix: str, used: bool) -> None:
    tls = listener.tls
    wrong = {
        "certificate: mqtts:// and wss:// need one": used and not (tls.certificate and tls.key),
        "client_ca: whose certificates may clients show?": tls.client_certificate != "none" and not tls.client_ca,
        "client_crl: clients are asked for no certificate": tls.client_certificate == "none" and tls.client_crl,
        "username_from: clients are asked for no certificate": tls.client_certificate == "none"
        and tls.username_from != "none",
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            hint = "set tls.certificate and tls.key" if "need one" in text else "see tls.client_certificate"
            raise ConfigError(f"{prefix}tls.{text}", hint)


def _build(values: Mapping[str, object]) -> Config:
    grouped: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    for name, value in values.items():
        grouped[KEYS[name].section][KEYS[name].field.name] = value
    sections: dict[str, Any] = {section: cls(**grouped[section]) for section, cls in SECTIONS.items()}
    return Config(**grouped[""], **sections)


def _from_overrides(overrides: Mapping[str, object]) -> Iterator[tuple[Key, object, str]]:
    for name, raw in overrides.items():
        if not name.startswith(TABLES):
            yield (*_override(name, raw, "", KEYS), "command line")


def _tables_from_overrides(overrides: Mapping[str, object]) -> Iterator[tuple[str, Key, object, str]]:
    for full, raw in overrides.items():
        if full.startswith(TABLES):
            name, _, key = full.removeprefix(TABLES).partition(".")
            _check_name(name, "the command line")
            yield (name, *_override(key, raw, f"{TABLES}{name}.", LISTENER_KEYS), "command line")


def _override(name: str, raw: object, prefix: str, known: Mapping[str, Key]) -> tuple[Key, object]:
    key = known.get(name)
    if key is None:
        raise _unknown("key", prefix + name, "the command line", known)
    return key, _read(key, raw, "the command line", is_text=True)


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[Key, object, str]]:
    for variable in sorted(name for name in env if name.startswith(PREFIX)):
        key = VARIABLES.get(variable)
        if key is not None:
            yield key, _read(key, env[variable], f"environment variable {variable}", is_text=True), variable
        elif not FOREIGN_VARIABLE.fullmatch(variable):
            raise _unknown("variable", variable, "the environment", VARIABLES)


class _Document:
    """A configuration file that has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._text = path.read_text("utf-8")
            self._document = tomllib.loads(self._text)
        except OSError as error:
            raise ConfigError(
                f"cannot read the configuration file {path}: {error.strerror}",
                "`flockmq sample-config` prints one to start from",
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error

    def keys(self) -> Iterator[tuple[Key, object, str]]:
        """What it sets outside of the tables of listeners: key, value, where."""
        for name, raw in _flatten(self._document, SECTIONS):
            if name != "listeners":
                yield self._key(name, raw, "", KEYS)

    def listeners(self) -> Iterator[tuple[str, Key, object, str]]:
        """What each [listeners.NAME] table sets: name, key, value, where."""
        tables = self._document.get("listeners", {})
        if not isinstance(tables, dict):
            raise ConfigError(f"listeners ({self._path}): expected tables such as [listeners.public]")
        for name, table in tables.items():
            prefix = f"{TABLES}{name}."
            origin = _place(self._path, self._text, prefix[:-1])
            _check_name(name if isinstance(table, dict) else f"{name} = {table!r}", origin)
            if "listen" not in table:
                raise ConfigError(f"listeners.{name} ({origin}) has no addresses", 'give it `listen = ["HOST:PORT"]`')
            for key, raw in _flatten(table, PER_LISTENER):
                yield (name, *self._key(key, raw, prefix, LISTENER_KEYS))

    def _key(self, name: str, raw: object, prefix: str, known: Mapping[str, Key]) -> tuple[Key, object, str]:
        origin = _place(self._path, self._text, prefix + name)
        key = known.get(name)
        if key is None:
            raise _unknown("key", prefix + name, origin, known)
        return key, _read(key, raw, origin, is_text=False), origin


def _check_name(name: str, origin: str) -> None:
    if not LISTENER_NAME.fullmatch(name) or name == "default":
        raise ConfigError(
            f"listeners.{_cut(name)} ({origin}): expected a table named by small letters, digits, - and _",
            'such as [listeners.public]; "default" is that of `listen`',
        )


def _flatten(document: Mapping[str, object], sections: Container[str]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if name in sections and isinstance(value, dict):
            yield from ((f"{name}.{inner}", raw) for inner, raw in value.items())
        else:
            yield name, value


def _place(path: Path, text: str, name: str) -> str:
    """`path:line` of a key; tomllib keeps no lines, so this finds the line that sets the key, as people write it."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]*?)\s*\]", line):
            section = header[1].replace('"', "")
            if section == name:
                return f"{path}:{number}"
        elif setting := re.match(r"\s*([\w\".-]+)\s*=", line):
            found = setting[1].replace('"', "")
            if name in (found, f"{section}.{found}") and (section or "." in found or "." not in name):
                return f"{path}:{number}"
    return str(path)


def _read(key: Key, raw: object, origin: str, *, is_text: bool) -> object:
    try:
        # A repeatable flag arrives as a list: of the same form as TOML's.
        return key.kind.read(raw, is_text=is_text and isinstance(raw, str))
    except (ValueError, OverflowError) as error:
        wanted = str(error) if type(error) is ValueError and str(error) else key.kind.expected
        shown = _cut(key.kind.shown(raw))
        raise ConfigError(f"{key.name} = {shown} ({origin}): expected {wanted}") from None


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _unknown(what: str, name: str, origin: str, known: Mapping[str, Key]) -> ConfigError:
    near = difflib.get_close_matches(name, known, 1, 0.6)
    if not near:  # The right name in the wrong section, or in none.
        near = [full for full in known if full.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    hint = f"did you mean {near[0]}?" if near else "`flockmq sample-config` shows every key"
    return ConfigError(f"unknown {what} {_cut(repr(name))[1:-1]} ({origin})", hint)


class Change(NamedTuple):
    """One key whose value differs."""

    key: Key
    old: object  # None in the table of a listener: not set there
    new: object
    listener: str = ""  # whose table it is in

    def __str__(self) -> str:
        old, new = ("not set" if v is None else self.key.kind.write(v) for v in (self.old, self.new))
        return f"{f'{TABLES}{self.listener}.' if self.listener else ''}{self.key.name}: {old} -> {new}"


class Diff(NamedTuple):
    """What differs between two configurations, sorted by whether a running node can follow."""

    reloadable: tuple[Change, ...]
    needs_restart: tuple[Change, ...]


def diff(old: Config, new: Config) -> Diff:
    """What SIGHUP would change: what the node can follow, and what needs a restart."""
    changes = [Change(key, key.of(old), key.of(new)) for key in KEYS.values() if key.of(old) != key.of(new)]
    changes += _table_changes(dict(old.tables), dict(new.tables))
    return Diff(
        tuple(change for change in changes if change.key.reloadable),
        tuple(change for change in changes if not change.key.reloadable),
    )


def _table_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys((*old, *new)):
        before, after = dict(old.get(name, ())), dict(new.get(name, ()))
        # Of a listener that comes or goes its addresses say enough.
        for key in LISTENER_KEYS.values() if before and after else (LISTENER_KEYS["listen"],):
            if before.get(key.name) != after.get(key.name):
                yield Change(key, before.get(key.name), after.get(key.name), name)


def follow(old: Config, changes: Diff) -> Config:
    """`old` with the reloadable changes applied: the configuration of a node after SIGHUP."""
    for key, _, value, listener in changes.reloadable:
        if listener:
            tables = {name: dict(table) for name, table in old.tables}
            tables[listener] = {**tables[listener], key.name: value}
            old = replace(old, tables=tuple((name, _without_none(table)) for name, table in tables.items()))
        elif key.section:
            section = replace(getattr(old, key.section), **{key.field.name: value})
            old = replace(old, **{key.section: section})
        else:
            old = replace(old, **{key.name: cast(Any, value)})
    return old


def _without_none(table: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in table.items() if value is not None)


def sample() -> str:
    """A commented TOML file that sets every key to its default."""
    lines = [
        "# FlockMQ: every key with its default. Written by `flockmq sample-config`.",
        "#",
        "# Flags win over environment variables, those over this file. The variable of a key is FLOCKMQ_SECTION_KEY.",
        '# Sizes: 65536, "512KiB", "2 MiB". Durations: 10, "10s", "1.5m". (reloadable) = SIGHUP applies a change.',
    ]
    section = ""
    for key in KEYS.values():
        if key.section != section:
            section = key.section
            doc = " ".join((SECTIONS[section].__doc__ or "").split())
            lines += ["", "", *textwrap.wrap(doc, 110, initial_indent="# ", subsequent_indent="# "), f"[{section}]"]
        kind = key.kind
        choices = f" One of {', '.join(kind.words)}." if isinstance(kind, Choice) else ""
        notes = f"{key.help}{choices}{' (reloadable)' if key.reloadable else ''}"
        lines += ["", *textwrap.wrap(notes, 110, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"{key.field.name} = {kind.write(key.field.default)}")
    return "\n".join(lines) + "\n"
