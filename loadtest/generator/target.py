"""A run's two inputs: the broker under load, and the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cost import Counts, Groups


@dataclass(frozen=True, kw_only=True)
class Target:
    """The broker under load."""

    port: int
    host: str = "127.0.0.1"  # IPv4 address
    publish_port: int = 0  # where publishers connect if this is another node; 0 and "" = the same
    publish_host: str = ""
    more_hosts: Sequence[tuple[str, int]] = ()  # further nodes: subscribers are at `host` and at these, in turn
    transport: str = "mqtt"  # "mqtt" (TCP), "mqtts" (TLS; any certificate is accepted), "ws" or "wss" (WebSocket)
    path: str = "/mqtt"  # of WebSocket
    level: int = 4  # protocol level of all clients: 4 = MQTT 3.1.1, 5 = MQTT 5.0
    username: str = ""  # of all clients; "" = no credentials
    password: str = ""
    pids: Sequence[int] = ()  # the broker's processes on this machine; without them there are no figures of CPU time
    groups: Groups | None = None  # some of its processes by name; the figure `x` of group "redis" is `x_redis`
    counts: Counts | None = None  # read before and after; the growth of counter `c` is `c_per_s` and `c_per_<thing>`


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Publishers, subscribers and their messages."""

    # "pairs": topic i from publisher i to subscriber i. "fanout": one topic, all subscribe. "fanin": a topic per
    # publisher, all subscribe with `+`. "wild": random topics, subscribers with many wildcard filters.
    # "shared": a topic per publisher, all subscribers share a `+` filter, so that each message is delivered once.
    shape: str = "pairs"
    publishers: int = 10
    subscribers: int = 10
    topics: int = 1_000_000  # "wild": in all
    filters: int = 50  # "wild": per subscriber
    topic_prefix: str = ""  # of all topics, so that runs side by side don't meet
    qos: int = 0  # of PUBLISH and SUBSCRIBE
    payload: int = 64  # bytes, at least 32
    properties: int = 0  # bytes of the property block of each message, level 5; 0 = no properties
    ids: bool = False  # each subscriber has a subscription identifier, level 5
    alias: str = ""  # topic aliases, level 5: publishers set one ("in"), subscribers take them ("out"), or "both"
    persistent: bool = False  # sessions are not clean and stay in the broker afterwards
    slow: int = 0  # "shared", QoS 1 and 2: so many subscribers, the first, acknowledge slowly
    slow_rate: float = 10.0  # acknowledgements per second of each of them
    dying: int = (
        0  # "shared": so many, the next, lose their connection every `dies_every` s and return at the next node
    )
    dies_every: float = 1.0  # seconds between two losses of one of them
    away: float = 0.1  # seconds until they return: as the same session if it is persistent
    batch: int = 1  # messages per write
    window: int = 20  # unacknowledged messages per publisher (QoS 1 and 2)
    backlog: int = 20_000  # outstanding deliveries at which publishers pause; 0 = only TCP slows them down
    rate: float = 0.0  # messages per second over all publishers; 0 = as many as possible
    count: int = 0  # messages over all publishers; 0 = no limit
    seconds: float = 3.0  # of publishing, after the warm-up
    warm_up: float = 0.5  # seconds left out of CPU time, rates and latencies; none with a `count`
    connect_limit: float = 60.0  # seconds for all clients to connect
    drain_limit: float = 10.0  # seconds for the last deliveries
    settle: float = 0.2  # seconds between the last SUBACK and the first PUBLISH


@dataclass(frozen=True, kw_only=True)
class IdleLoad:
    """Idle connections that only ping."""

    connections: int = 5000  # this process opens a file for each
    subscribe: bool = False  # one subscription for each
    keep_alive: int = 60  # seconds; each connection pings once in three quarters of it, all spread evenly
    parallel: int = 100  # simultaneous handshakes
    seconds: float = 5.0  # to hold them, after `settle`
    settle: float = 1.0  # seconds for the broker to become idle
    connect_limit: float = 120.0  # seconds for all to connect


@dataclass(frozen=True, kw_only=True)
class ReconnectLoad:
    """Connections that connect and disconnect, over and over."""

    parallel: int = 50  # connections, each with its own client identifier
    persistent: bool = False  # sessions are not clean: each is created once and then resumed
    seconds: float = 3.0  # after the warm-up
    warm_up: float = 0.3  # seconds


@dataclass(frozen=True, kw_only=True)
class TakeOverLoad:
    """Clients that connect while they are connected, alternating between the target's two nodes if there are two.

    A broker may delay clients that take over each other's session repeatedly, so there should be many.
    """

    clients: int = 1000  # in turn; the next take-over of a client follows the end of its old connection
    rate: float = 300.0  # take-overs per second in all; 0 = as many as possible
    persistent: bool = False  # sessions are not clean, and each has a subscription
    seconds: float = 3.0
    connect_limit: float = 60.0  # seconds for the first connections


@dataclass(frozen=True, kw_only=True)
class WillsLoad:
    """Sessions whose clients are gone, and whose delayed wills are due within one second. Level 5."""

    wills: int = 100_000
    delay: float = 120.0  # seconds from the first connection until the wills are due; all clients connect before
    limit: float = 60.0  # seconds for all wills to arrive after that
    seconds: float = 0.0  # of other runs; this one lasts as long as it takes


Load = Workload | IdleLoad | ReconnectLoad | TakeOverLoad | WillsLoad
NO_MESSAGES = Workload(publishers=0, subscribers=0)
