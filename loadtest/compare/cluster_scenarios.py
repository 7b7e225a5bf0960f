"""The scenarios of the bench for a cluster and their goals: three nodes a, b, c and one Redis."""

from __future__ import annotations

from typing import Any

from .scenarios import PAIRS, Goal, Row, Scenario, Table

ACROSS, WITHIN, AEDES = "A to B", "within A", "Aedes A to B"
IDLE, LOGGED = "at 1 msg/s", "logged"
REDIS_TARGET = 40_000  # messages per second at one core of Redis
PLACES_OF_FLOCKMQ = (ACROSS, WITHIN)
AEDES_SHARE = 20  # times Aedes' messages per core

CLUSTER_TABLE = Table(
    columns=(ACROSS, WITHIN, AEDES, "Aedes within A"),
    ratios=(WITHIN, AEDES),
    per_second="per s at one core",
    title="Cluster",
    preface="""\
Three nodes and one Redis (append-only file, synced once a second). Publishers are connected to node A, subscribers to B
(A to B) or to A too (within A); C has no clients. Nodes, Redis and generator share one core as above, so `time` is the
time of all of them per message. "Full load": nodes and Redis have SCHED_BATCH, so that each has as much to read as on a
busy core of its own; otherwise each is woken for the few bytes that another one has just sent. Aedes: three
processes with its Redis persistence and emitter on the same kind of Redis.""",
)
TOUCH_TABLE = Table(
    columns=(ACROSS, WITHIN, IDLE),
    ratios=(),
    title="Nodes that a message reaches",
    preface="""\
Counted in the same cluster at 20 000 messages per second from A to B and within A, and at one message per second, which
leaves mainly heartbeats.""",
)

LOG_TABLE = Table(
    columns=(LOGGED, WITHIN),
    ratios=(WITHIN,),
    per_second="per s at one core",
    title="The log of messages",
    preface="""\
The additional cost of a message for a node and Redis when it is logged for analytics (`--analytics '#'`); the receiver
is connected to the same node. At QoS 1 the acknowledgement then waits for Redis; without the log only for the node.""",
)


def _costs(nodes: tuple[Goal, ...] = (), redis: tuple[Goal, ...] = (), thing: str = "delivery") -> tuple[Row, ...]:
    """Return CPU of the nodes, of each, and of Redis."""
    figure = f"cpu_us_per_{thing}_median"
    return (
        Row(f"{figure}_nodes", "CPU µs", label=": A and B", per_second=True, goals=nodes),
        *(Row(f"{figure}_{name}", "CPU µs", label=f": {name.upper()}") for name in "abc"),
        Row(f"{figure}_redis", "CPU µs", label=": Redis", per_second=True, goals=redis),
    )


def _publishing(
    name: str,
    label: str,
    parameters: dict[str, Any],
    nodes: tuple[Goal, ...] = (),
    redis: tuple[Goal, ...] = (),
    time: tuple[Goal, ...] = (),
    full: bool = True,
    brokers: tuple[str, ...] = CLUSTER_TABLE.columns,
) -> Scenario:
    together = (Goal(1 / AEDES_SHARE, AEDES, f"≤ 1/{AEDES_SHARE} Aedes"),) if AEDES in brokers else ()
    rows = (
        *_costs(nodes, redis),
        Row("cpu_us_per_delivery_median_all", "CPU µs", label=": all", per_second=True, goals=together),
        Row("us_per_delivery", "µs elapsed", label=": time", goals=time),
    )
    if full:
        label += ", full load"
    return Scenario(
        name,
        label,
        rows,
        parameters=parameters,
        brokers=brokers,
        table=CLUSTER_TABLE,
        saturated=full,
    )


def _latency(qos: int, shared: bool = False) -> Scenario:
    rows = (
        Row("latency_p50_us", "µs", label=", p50", goals=(Goal(1000, text="< 1 ms"),)),
        Row("latency_p99_us", "µs", label=", p99", goals=(Goal(5000, text="< 5 ms"),)),
    )
    return Scenario(
        f"cluster-latency-{'shared-' if shared else ''}qos{qos}",
        f"latency at 1000 msg/s, QoS {qos}{', shared subscription' if shared else ''}",
        rows,
        parameters={**PAIRS, "rate": 1000, "qos": qos, "shape": "shared" if shared else "pairs"},
        brokers=(ACROSS, WITHIN),
        apart=True,
        table=CLUSTER_TABLE,
    )


def _take_over(sessions: str, persistent: bool) -> Scenario:
    rows = (
        Row("latency_p50_us", "µs", label=", p50"),
        Row("latency_p99_us", "µs", label=", p99", goals=(Goal(20_000, text="< 20 ms"),)),
    )
    return Scenario(
        f"cluster-take-over-{sessions}",
        f"300 take-overs a second, {sessions} sessions, CONNECT to CONNACK",
        rows,
        run="take-over",
        parameters={"clients": 1000, "persistent": persistent},
        brokers=(ACROSS, WITHIN, AEDES),
        apart=True,
        table=CLUSTER_TABLE,
    )


def _connects(sessions: str, persistent: bool) -> Scenario:
    return Scenario(
        f"cluster-connects-{sessions}",
        f"connect, CONNACK, disconnect, {sessions} sessions",
        (*_costs(thing="connect"), Row("connects_per_s", "1/s", label=": rate")),
        run="connect",
        parameters={"persistent": persistent},
        brokers=(WITHIN, "Aedes within A"),
        table=CLUSTER_TABLE,
    )


def _quiet(limit: float, *places: str) -> tuple[Goal, ...]:
    """Return goals: in these places at most the cost of heartbeats."""
    return tuple(Goal(limit, text=f"{place}: ≤ {limit:,g}", whose=place) for place in places)


def _logging(name: str, label: str, parameters: dict[str, Any]) -> Scenario:
    goals = (Goal(0.3, WITHIN, "≤ 0.3 more", above=True),)
    return Scenario(
        name,
        label + ", full load",
        (
            Row("cpu_us_per_delivery_median_a", "CPU µs", label=": A", per_second=True, goals=goals),
            Row("cpu_us_per_delivery_median_redis", "CPU µs", label=": Redis", per_second=True),
        ),
        parameters=parameters,
        brokers=LOG_TABLE.columns,
        table=LOG_TABLE,
        saturated=True,
    )


_QOS1 = {**PAIRS, "qos": 1}
_MANY = {"publishers": 100, "subscribers": 100, "qos": 1, "persistent": True}
_REDIS_PERSISTENT = (Goal(6), Goal(1e6 / REDIS_TARGET, text=f"≥ {REDIS_TARGET:,}/s at one core"))
_HALF = (Goal(2, WITHIN, f"≥ 1/2 the rate {WITHIN}"),)

CLUSTER = (
    _publishing("cluster-qos0", "pairs 10:10, QoS 0, one message per write", PAIRS, (Goal(1.6, WITHIN),), (Goal(0.3),)),
    _publishing(
        "cluster-qos0-16",
        "pairs 10:10, QoS 0, 16 per write",
        {**PAIRS, "batch": 16},
        (Goal(1.6, WITHIN),),
        (Goal(0.3),),
    ),
    _publishing(
        "cluster-qos0-woken", "pairs 10:10, QoS 0, one message per write", PAIRS, (Goal(1.6, WITHIN),), full=False
    ),
    _publishing("cluster-qos1", "pairs 10:10, QoS 1, clean sessions", _QOS1, time=_HALF),
    _publishing("cluster-qos1-woken", "pairs 10:10, QoS 1, clean sessions", _QOS1, time=_HALF, full=False),
    _publishing(
        "cluster-persistent",
        "pairs 10:10, QoS 1, persistent",
        {**_QOS1, "persistent": True},
        redis=_REDIS_PERSISTENT,
        time=_HALF,
    ),
    _publishing(
        "cluster-persistent-100", "pairs 100:100, QoS 1, persistent", _MANY, redis=_REDIS_PERSISTENT, time=_HALF
    ),
    _publishing(
        "cluster-persistent-woken",
        "pairs 10:10, QoS 1, persistent",
        {**_QOS1, "persistent": True},
        time=_HALF,
        full=False,
        brokers=PLACES_OF_FLOCKMQ,
    ),
    *(
        _publishing(
            f"cluster-shared{'' if full else '-woken'}",
            "shared subscription of 10 persistent sessions, 10 publishers, QoS 1",
            {**_QOS1, "persistent": True, "shape": "shared"},
            time=_HALF,
            full=full,
            brokers=PLACES_OF_FLOCKMQ,
        )
        for full in (True, False)
    ),
    _publishing(
        "cluster-shared-clean",
        "shared subscription of 10 clean sessions, 10 publishers, QoS 1",
        {**_QOS1, "shape": "shared"},
        time=_HALF,
        brokers=PLACES_OF_FLOCKMQ,
    ),
    _latency(0),
    _latency(1),
    _latency(1, shared=True),
    _take_over("clean", False),
    _take_over("persistent", True),
    _connects("clean", False),
    _connects("persistent", True),
    Scenario(
        "cluster-touch",
        "20 000 msg/s, QoS 0",
        (
            Row("redis_commands_per_s", "1/s", label=": commands that Redis executes", goals=_quiet(100, WITHIN)),
            Row("bytes_to_redis_a_per_s", "bytes/s", label=": A to Redis", goals=_quiet(5000, WITHIN)),
            Row("bytes_from_redis_a_per_s", "bytes/s", label=": Redis to A", goals=_quiet(5000, WITHIN)),
            Row("bytes_from_redis_b_per_s", "bytes/s", label=": Redis to B", goals=_quiet(5000, WITHIN)),
            Row("bytes_from_redis_c_per_s", "bytes/s", label=": Redis to C", goals=_quiet(5000, ACROSS, WITHIN)),
            Row("wake_ups_c_per_s", "1/s", label=": C is woken", goals=_quiet(100, ACROSS, WITHIN)),
            Row("cpu_share_b", "% of a core", 100, label=": CPU of B", goals=_quiet(1, WITHIN)),
            Row("cpu_share_c", "% of a core", 100, label=": CPU of C", goals=_quiet(1, ACROSS, WITHIN)),
        ),
        parameters={**PAIRS, "rate": 20_000},
        brokers=TOUCH_TABLE.columns,
        table=TOUCH_TABLE,
        counts=True,
    ),
)

LOGS = (
    _logging("log-qos0", "pairs 10:10, QoS 0, one message per write", PAIRS),
    _logging("log-qos0-16", "pairs 10:10, QoS 0, 16 per write", {**PAIRS, "batch": 16}),
    _logging("log-qos1", "pairs 10:10, QoS 1", _QOS1),
    _logging("log-qos1-100", "pairs 100:100, QoS 1", {"publishers": 100, "subscribers": 100, "qos": 1}),
    _logging("log-persistent", "pairs 10:10, QoS 1, persistent", {**_QOS1, "persistent": True}),
)
