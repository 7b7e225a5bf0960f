"""The sections about the management of a node: [http], [oidc], [audit], [otel] and [metrics]."""

from dataclasses import dataclass

from .kinds import Addresses, Boolean, Duration, FilePath, Integer, Name, Networks, Share, Size, Texts, TopicFilters
from .option import CENTURY, MIB, SIZE_MAX, option


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
class MetricsConfig:
    """Figures of your choice, beside those that each node has, at /metrics and in the API."""

    topics: tuple[str, ...] = option(
        (),
        "Topic filters whose messages and bytes are counted, at most 100.",
        TopicFilters(100),
        reloadable=True,
    )
