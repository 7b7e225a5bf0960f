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

from broker.config_values import (
    Addresses,
    Boolean,
    Choice,
    Duration,
    FilePath,
    Integer,
    Kind,
    Name,
    Networks,
    PythonObjects,
    Rate,
    RedisUrlKind,
    Size,
    StoreUrl,
    TopicFilters,
)
from broker.config_values import split_address as split_address
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
        "Addresses to accept MQTT from load balancers on, HOST:PORT each: every connection must begin with a PROXY "
        "header there. `listen` takes none.",
        Addresses(may_be_empty=True),
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
        (), "Hooks as MODULE:OBJECT each, asked in this order; a class is called to make one.", PythonObjects(),
        flag="--hooks",
    )  # fmt: skip
    timeout: float = option(
        5.0, "Seconds that a call of an `async def` may take; then it counts as a refusal.", Duration(0.01, 3600)
    )


@dataclass(frozen=True)
class TlsConfig:
    """Certificates, for listeners and `http.listen` addresses with TLS."""

    certificate: str = option(
        "", "PEM file with the certificate, and those that vouch for it after it.", FilePath(), reloadable=True
    )
    key: str = option("", "PEM file with its private key.", FilePath(), reloadable=True)


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
        0, "Connections of a listener at a time; 0 = no limit but `limits.max_connections`.", Integer(0, COUNT_MAX),
        reloadable=True,
    )  # fmt: skip
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
    listen: tuple[str, ...]
    tls: TlsConfig
    auth: AuthConfig
    quotas: QuotasConfig


@dataclass(frozen=True)
class Config:
    """The whole configuration of one node."""

    listen: tuple[str, ...] = option(
        ("127.0.0.1:1883",),
        "Addresses to accept MQTT on, HOST:PORT each; 0.0.0.0:1883 opens the node to the network, port 0 takes a "
        "free port.",
        Addresses(),
        flag="--listen",
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
    auth: AuthConfig = AuthConfig()
    quotas: QuotasConfig = QuotasConfig()
    tables: tuple[tuple[str, tuple[tuple[str, object], ...]], ...] = ()  # of [listeners.NAME]: key -> value

    @property
    def listeners(self) -> tuple[ListenerConfig, ...]:
        """Every listener with what holds for it; the first is that of `listen`."""
        found = [ListenerConfig("default", self.listen, self.tls, self.auth, self.quotas)]
        for name, values in self.tables:
            given = dict(values)
            sections = {
                section: replace(
                    getattr(self, section),
                    **{key.rpartition(".")[2]: value for key, value in values if key.startswith(section + ".")},
                )
                for section in PER_LISTENER
            }
            found.append(ListenerConfig(name, cast(Any, given["listen"]), **cast(Any, sections)))
        return tuple(found)


PER_LISTENER = ("tls", "auth", "quotas")  # sections whose keys a [listeners.NAME] table may have


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
LISTENER_KEYS = {name: key for name, key in KEYS.items() if name == "listen" or key.section in PER_LISTENER}
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
    tables: list[tuple[str, tuple[tuple[str, object], ...]]] = []
    for name, found in document.listeners() if document else ():
        tables.append((name, tuple((key.name, value) for key, value, _ in found)))
        origins.update((f"listeners.{name}.{key.name}", origin) for key, _, origin in found)
    loaded = Loaded(replace(_build(values), tables=tuple(tables)), origins)
    _check(loaded)
    return loaded


def _check(loaded: Loaded) -> None:
    """What concerns more than one key."""
    cluster = loaded.config.cluster
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


def _build(values: Mapping[str, object]) -> Config:
    grouped: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    for name, value in values.items():
        grouped[KEYS[name].section][KEYS[name].field.name] = value
    sections: dict[str, Any] = {section: cls(**grouped[section]) for section, cls in SECTIONS.items()}
    return Config(**grouped[""], **sections)


def _from_overrides(overrides: Mapping[str, object]) -> Iterator[tuple[Key, object, str]]:
    for name, raw in overrides.items():
        key = KEYS.get(name)
        if key is None:
            raise _unknown("key", name, "the command line", KEYS)
        yield key, _read(key, raw, "the command line", is_text=True), "command line"


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

    def listeners(self) -> Iterator[tuple[str, list[tuple[Key, object, str]]]]:
        """Each [listeners.NAME] table: name, and what it sets."""
        tables = self._document.get("listeners", {})
        if not isinstance(tables, dict):
            raise ConfigError(f"listeners ({self._path}): expected tables such as [listeners.public]")
        for name, table in tables.items():
            prefix = f"listeners.{name}."
            origin = _place(self._path, self._text, prefix[:-1])
            if not LISTENER_NAME.fullmatch(name) or name == "default" or not isinstance(table, dict):
                raise ConfigError(
                    f"listeners.{_cut(name)} ({origin}): expected a table named by small letters, digits, - and _",
                    'such as [listeners.public]; "default" is that of `listen`',
                )
            if "listen" not in table:
                raise ConfigError(f"listeners.{name} ({origin}) has no addresses", 'give it `listen = ["HOST:PORT"]`')
            yield name, [self._key(key, raw, prefix, LISTENER_KEYS) for key, raw in _flatten(table, PER_LISTENER)]

    def _key(self, name: str, raw: object, prefix: str, known: Mapping[str, Key]) -> tuple[Key, object, str]:
        origin = _place(self._path, self._text, prefix + name)
        key = known.get(name)
        if key is None:
            raise _unknown("key", prefix + name, origin, known)
        return key, _read(key, raw, origin, is_text=False), origin


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
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key.name}: {self.key.kind.write(self.old)} -> {self.key.kind.write(self.new)}"


class Diff(NamedTuple):
    """What differs between two configurations, sorted by whether a running node can follow."""

    reloadable: tuple[Change, ...]
    needs_restart: tuple[Change, ...]


def diff(old: Config, new: Config) -> Diff:
    """What SIGHUP would change: what the node can follow, and what needs a restart."""
    changes = [Change(key, key.of(old), key.of(new)) for key in KEYS.values() if key.of(old) != key.of(new)]
    return Diff(
        tuple(change for change in changes if change.key.reloadable),
        tuple(change for change in changes if not change.key.reloadable),
    )


def follow(old: Config, changes: Diff) -> Config:
    """`old` with the reloadable changes applied: the configuration of a node after SIGHUP."""
    for key, _, value in changes.reloadable:
        if key.section:
            section = replace(getattr(old, key.section), **{key.field.name: value})
            old = replace(old, **{key.section: section})
        else:
            old = replace(old, **{key.name: cast(Any, value)})
    return old


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
