"""The settings of one generator, checked."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from .target import NO_MESSAGES, Target, Workload

SHAPES = ("pairs", "fanout", "fanin", "wild", "shared")  # in the order of the constants in shapes.pxd
ALIASES = ("", "in", "out", "both")
MAX_NODES = 16  # of subscribers; as in connection.pxd
MAX_MEMBERS = 65_534  # of a shared subscription
TRANSPORTS = ("mqtt", "mqtts", "ws", "wss")
MAX_CONNECTIONS = 1_000_000
MIN_PAYLOAD = 32  # bytes; the header of generated payloads
MAX_PAYLOAD = 1 << 24
MAX_BATCH = 65536
MIN_PROPERTIES = 9  # bytes; a user property with a name of four
MAX_PROPERTIES = 65_535
MAX_CLIENT_PREFIX = 16  # characters
MAX_TOPIC_PREFIX = 32  # as PREFIX_SIZE in shapes.pxd
MAX_LOGIN = 256  # bytes of user name and password; LOGIN_SIZE in client_packets.pxd is 4 more


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that a generator needs.

    Raises:
        ValueError: a value is out of range.
    """

    target: Target
    workload: Workload = NO_MESSAGES  # `rate` is also of take-overs, `persistent` of all clients
    idle: int = 0  # connections that only ping
    take_over: int = 0  # clients that connect again while they are connected
    reconnect: int = 0  # connections that connect and disconnect over and over
    subscribe: bool = False  # one subscription for each idle connection and each client that is taken over
    parallel: int = 100  # simultaneous handshakes
    keep_alive: int = 60  # seconds; a connection pings once in three quarters of it
    client_prefix: str = "load"  # ASCII; the start of every client identifier
    run_id: int = 0  # 32 bits; identifies this run's messages

    def __post_init__(self) -> None:
        target, workload = self.target, self.workload
        if workload.shape not in SHAPES:
            raise ValueError(f"unknown shape {workload.shape!r}")
        if workload.shape == "pairs" and workload.publishers != workload.subscribers:
            raise ValueError("pairs need as many publishers as subscribers")
        if not 0 <= workload.qos <= 2 or not 1 <= workload.window <= 65535 or not 1 <= workload.batch <= MAX_BATCH:
            raise ValueError("qos, window or batch is out of range")
        if not 1 <= target.port <= 65535 or not 0 <= target.publish_port <= 65535:
            raise ValueError("port or publish_port is out of range")
        if not MIN_PAYLOAD <= workload.payload <= MAX_PAYLOAD or workload.rate < 0:
            raise ValueError(f"payload (at least {MIN_PAYLOAD} bytes) or rate is out of range")
        if self.keep_alive < 1 or self.parallel < 1:
            raise ValueError("keep_alive or parallel is out of range")
        if len(self.client_prefix.encode("ascii")) > MAX_CLIENT_PREFIX:
            raise ValueError(f"client_prefix is longer than {MAX_CLIENT_PREFIX} characters")
        if len(workload.topic_prefix.encode("ascii")) > MAX_TOPIC_PREFIX:
            raise ValueError(f"topic_prefix is longer than {MAX_TOPIC_PREFIX} characters")
        if len(target.username.encode()) + len(target.password.encode()) > MAX_LOGIN:
            raise ValueError(f"username and password are longer than {MAX_LOGIN} bytes")
        if target.level not in (4, 5):
            raise ValueError("level is 4 or 5")
        if target.level == 4 and (workload.properties or workload.ids or workload.alias):
            raise ValueError("properties, ids and alias need level 5")
        if workload.alias not in ALIASES:
            raise ValueError(f"unknown alias {workload.alias!r}")
        if workload.alias in ("in", "both") and workload.shape == "wild":
            raise ValueError("a publisher of wild has more topics than aliases")
        if workload.properties and not MIN_PROPERTIES <= workload.properties <= MAX_PROPERTIES:
            raise ValueError(f"properties are 0, or {MIN_PROPERTIES} to {MAX_PROPERTIES} bytes")
        if target.password and not target.username:
            raise ValueError("a password needs a user name")
        if target.transport not in TRANSPORTS:
            raise ValueError(f"unknown transport {target.transport!r}")
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise ValueError("the number of connections is out of range")
        if len(target.more_hosts) >= MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} nodes of subscribers")
        check_subscribers(workload)
        _ = self.addresses

    @property
    def connections(self) -> int:
        """Number of connections; a client that is taken over has two."""
        return self.workload.publishers + self.workload.subscribers + self.idle + 2 * self.take_over + self.reconnect

    @property
    def addresses(self) -> list[int]:
        """The IPv4 addresses of the broker: for subscribers and others, for publishers, for more subscribers."""
        target = self.target
        hosts = [target.host, target.publish_host or target.host, *(host for host, _ in target.more_hosts)]
        return [ipv4(host) for host in hosts]


def check_subscribers(load: Workload) -> None:
    """Check the slow and dying subscribers of a shared subscription. Raises ValueError."""
    if load.shape == "shared" and load.subscribers > MAX_MEMBERS:
        raise ValueError(f"shared has at most {MAX_MEMBERS} subscribers")
    if not load.slow and not load.dying:
        return
    if load.shape != "shared":
        raise ValueError("slow and dying subscribers need the shape shared")
    if load.slow + load.dying > load.subscribers:
        raise ValueError("there are more slow and dying subscribers than subscribers")
    if load.slow and not load.qos:
        raise ValueError("slow subscribers need QoS 1 or 2: QoS 0 has no acknowledgements")
    if load.dying and load.qos == 2 and not load.persistent:
        raise ValueError("at QoS 2 dying subscribers need persistent sessions: a clean one ends with its messages")
    if load.slow_rate <= 0 or load.dies_every <= 0 or load.away < 0:
        raise ValueError("slow_rate, dies_every or away is out of range")


def ipv4(host: str) -> int:
    """The address as a number. Raises ValueError."""
    try:
        return int(IPv4Address(host))
    except AddressValueError:
        raise ValueError(f"{host!r} is not an IPv4 address") from None
