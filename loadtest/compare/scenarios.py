"""The scenarios of the bench and their goals, as a table. A new row is one entry here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PAIRS = {"publishers": 10, "subscribers": 10}
SQLITE_TARGET = 50_000  # messages per second at one core
CONNECTS_TARGET = 10_000  # per second at one core


@dataclass(frozen=True)
class Goal:
    """A figure of the table's first column is at most `limit`, or `limit` times (or `above`) the figure of column
    `of`."""

    limit: float
    of: str = ""
    text: str = ""  # shown in place of the number
    whose: str = ""  # a column other than the first
    above: bool = False  # at most `limit` more than the figure of `of`


@dataclass(frozen=True)
class Row:
    """One figure of a scenario, as a line of the table; smaller is better."""

    figure: str  # its name in the generator's figures
    unit: str  # as printed, after `scale`
    scale: float = 1.0
    per_second: bool = False  # the figure is CPU microseconds per thing: print things per second and core, too
    label: str = ""  # appended to the scenario's
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of the report; a column is a broker or a place in a cluster (a key of `PLACES`)."""

    columns: tuple[str, ...]
    ratios: tuple[str, ...]  # columns that divide the first one
    per_second: str = ""  # heading of the column with things per second and core
    title: str = ""  # with `preface`, printed before the table
    preface: str = ""


BROKERS = Table(
    columns=("FlockMQ", "Mosquitto", "FlashMQ", "baseline"),
    ratios=("Mosquitto", "FlashMQ", "baseline"),
    per_second="FlockMQ/s at one core",
)


@dataclass(frozen=True)
class Scenario:
    """One kind of run.

    On one core shared with the generator, the broker has as much to read as on its own core under full load, and there
    are no wake-ups across cores. Apart, a broker faster than the generator sleeps and is woken for every message, which
    costs both several times as much and varies from run to run; by default only latencies are measured apart. Also on
    one core a fast broker can be woken for every message, if very many connections publish a little each: `saturated`
    keeps it from running before the end of the generator's turn.
    """

    name: str  # for --only
    label: str
    rows: tuple[Row, ...]
    run: str = "publish"  # "publish", "hold", "connect", "take-over", "wills": a key of `benchmark.RUNS`
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the load
    quick: Mapping[str, Any] = field(default_factory=dict)  # parameters that --quick changes
    brokers: tuple[str, ...] = ("FlockMQ", "Mosquitto")
    store: str = "memory"
    apart: bool = False  # broker and generator on different cores
    saturated: bool = False  # the broker is started with SCHED_BATCH
    table: Table = BROKERS  # `brokers` are among its columns
    level: int = 4  # of the protocol
    counts: bool = False  # of a cluster: count the traffic between Redis and each node, too


def _cpu(*goals: Goal) -> tuple[Row, ...]:
    return (Row("cpu_us_per_delivery_median", "CPU µs", per_second=True, goals=goals),)


def _share(denominator: int) -> Goal:
    return Goal(1 / denominator, "Mosquitto", f"≤ 1/{denominator} Mosquitto")


def _latency(limit: float = 1.0) -> tuple[Row, ...]:
    goals = (Goal(limit, "Mosquitto", "≤ Mosquitto"),)
    return (
        Row("latency_p50_us", "µs", label=", p50", goals=goals),
        Row("latency_p99_us", "µs", label=", p99", goals=goals),
    )


ALL = BROKERS.columns
SINGLE: tuple[Scenario, ...] = (
    Scenario(
        "pairs",
        "pairs 10:10, QoS 0, one message per write",
        _cpu(_share(6), Goal(1.5, "baseline")),
        parameters=PAIRS,
        brokers=ALL,
    ),
    Scenario(
        "pairs-16",
        "pairs 10:10, QoS 0, 16 per write",
        _cpu(_share(15), Goal(2, "baseline")),
        parameters={**PAIRS, "batch": 16},
        brokers=ALL,
    ),
    Scenario(
        "fanout",
        "fan-out 1:1000, QoS 0",
        _cpu(_share(5), Goal(1.3, "baseline")),
        parameters={"shape": "fanout", "publishers": 1, "subscribers": 1000},
        brokers=ALL,
    ),
    Scenario(
        "fanin",
        "fan-in 100:1, QoS 0",
        _cpu(_share(6)),
        parameters={"shape": "fanin", "publishers": 100, "subscribers": 1},
        brokers=ALL,
        saturated=True,
    ),
    Scenario(
        "wild",
        "wild, 1 M topics, 100 subscribers x 50 filters, QoS 0",
        _cpu(_share(6)),
        parameters={"shape": "wild", "publishers": 10, "subscribers": 100, "topics": 1_000_000, "filters": 50},
    ),
    Scenario("pairs-qos1", "pairs 10:10, QoS 1, window 20", _cpu(_share(5)), parameters={**PAIRS, "qos": 1}),
    Scenario("pairs-qos2", "pairs 10:10, QoS 2, window 20", _cpu(_share(5)), parameters={**PAIRS, "qos": 2}),
    Scenario(
        "shared",
        "shared subscription of 10, 10 publishers, QoS 0",
        _cpu(_share(5)),
        parameters={**PAIRS, "shape": "shared"},
    ),
    Scenario(
        "shared-qos1",
        "shared subscription of 10, 10 publishers, QoS 1",
        _cpu(_share(5)),
        parameters={**PAIRS, "shape": "shared", "qos": 1},
    ),
    Scenario(
        "sqlite-normal",
        "pairs 10:10, QoS 1, persistent sessions, SQLite, sync normal",
        _cpu(Goal(1e6 / SQLITE_TARGET, text=f"≥ {SQLITE_TARGET:,}/s at one core")),
        parameters={**PAIRS, "qos": 1, "persistent": True},
        brokers=("FlockMQ",),
        store="sqlite-normal",
    ),
    Scenario(
        "sqlite-full",
        "pairs 10:10, QoS 1, persistent sessions, SQLite, sync full",
        (*_cpu(), Row("us_per_delivery", "µs elapsed", label=", time")),
        parameters={**PAIRS, "qos": 1, "persistent": True},
        brokers=("FlockMQ",),
        store="sqlite-full",
    ),
    *(
        Scenario(
            f"steady-{rate}",
            f"pairs 10:10, {rate:,} messages/s, QoS 0, a core each",
            _cpu(Goal(1.2, "baseline"), Goal(1.0, "Mosquitto", "≤ Mosquitto")),
            parameters={**PAIRS, "rate": rate},
            brokers=ALL,
            apart=True,
        )
        for rate in (5_000, 20_000)
    ),
    Scenario(
        "steady-5000-qos1",
        "pairs 10:10, 5,000 messages/s, QoS 1, a core each",
        _cpu(Goal(1.0, "Mosquitto", "≤ Mosquitto")),
        parameters={**PAIRS, "rate": 5_000, "qos": 1},
        apart=True,
    ),
    Scenario(
        "latency-qos0",
        "latency at 1000 msg/s, QoS 0",
        _latency(),
        parameters={**PAIRS, "rate": 1000},
        apart=True,
    ),
    Scenario(
        "latency-qos1",
        "latency at 1000 msg/s, QoS 1",
        _latency(),
        parameters={**PAIRS, "rate": 1000, "qos": 1},
        apart=True,
    ),
    Scenario(
        "idle",
        "15 000 idle connections, one subscription each",
        (
            Row(
                "memory_per_connection_bytes",
                "KiB each",
                1 / 1024,
                label=", memory",
                goals=(Goal(3, text="≤ 3 KiB"),),
            ),
            Row("idle_cpu_share", "% of a core", 100, label=", CPU", goals=(Goal(1, text="< 1 %"),)),
        ),
        run="hold",
        parameters={"connections": 15_000, "subscribe": True},
        quick={"connections": 2000},
        apart=True,
    ),
    Scenario(
        "connects",
        "connect, CONNACK, disconnect",
        (
            Row(
                "cpu_us_per_connect_median",
                "CPU µs",
                per_second=True,
                goals=(Goal(1e6 / CONNECTS_TARGET, text=f"≥ {CONNECTS_TARGET:,}/s at one core"),),
            ),
        ),
        run="connect",
    ),
)


def at_level_5(scenario: Scenario, name: str = "-5", label: str = "", **more: Any) -> Scenario:
    """The same with MQTT 5.0, without goals; `more` are parameters of the load."""
    return replace(
        scenario,
        name=f"{scenario.name}{name}",
        label=f"{scenario.label}, MQTT 5.0{label}",
        rows=_cpu() if scenario.run == "publish" else scenario.rows,
        parameters={**scenario.parameters, **more},
        brokers=("FlockMQ", "Mosquitto", "FlashMQ"),
        level=5,
    )


_MESSAGES = {scenario.name: scenario for scenario in SINGLE if scenario.store == "memory" and not scenario.apart}
LEVEL_5 = (
    *(at_level_5(scenario) for scenario in _MESSAGES.values() if scenario.run == "publish"),
    at_level_5(_MESSAGES["pairs"], "-5-properties", ", 60 bytes of properties", properties=60),
    at_level_5(_MESSAGES["pairs-qos1"], "-5-properties", ", 60 bytes of properties", properties=60),
    at_level_5(_MESSAGES["fanout"], "-5-properties", ", 60 bytes of properties", properties=60),
    at_level_5(_MESSAGES["fanout"], "-5-ids", ", subscription identifiers", ids=True),
    at_level_5(_MESSAGES["pairs"], "-5-alias-in", ", topic aliases of publishers", alias="in"),
    at_level_5(_MESSAGES["pairs"], "-5-alias-out", ", topic aliases to subscribers", alias="out"),
    at_level_5(next(scenario for scenario in SINGLE if scenario.name == "idle")),
    Scenario(
        "wills-5",
        "100 000 delayed wills due within a second, MQTT 5.0",
        (
            Row("wills_s", "s", label=", from the first to the last", goals=(Goal(5, text="≤ 5 s"),)),
            Row(
                "others_latency_max_us",
                "ms",
                1e-3,
                label=", longest latency of another client",
                goals=(Goal(50, text="≤ 50 ms"),),
            ),
        ),
        run="wills",
        quick={"wills": 2000, "delay": 5.0},
        brokers=("FlockMQ", "Mosquitto", "FlashMQ"),
        apart=True,
        level=5,
    ),
)
SINGLE += LEVEL_5
