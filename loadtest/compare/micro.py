"""Micro-benchmarks of the compiled modules, in one process and without a socket.

A row of `MICROS` is a name, a unit, a function that prepares and measures, and a goal. The function imports its
modules; a row without its modules is skipped, with the reason. `python -m flockmq.loadtest.compare.micro` prints all
rows.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from statistics import median
from typing import Any

from ..generator.cost import ProcessMeter

REPEATS = 7
TOPIC_NAME = "site/17/dev/203/m4"
PAYLOAD = b"x" * 64
SUBSCRIPTIONS = 1_000_000
FILTERS_PER_CLIENT = 50
RECEIVERS = 1000
RETAINED = 1_000_000
SENSORS = 10  # of each device with retained messages
SIDE = 316  # number of sites, and of devices of each; with ten metrics each, as many topics as subscriptions


@dataclass(frozen=True)
class Micro:
    """One micro-benchmark."""

    name: str
    unit: str
    measure: Callable[[float], float]  # argument: approximate seconds to take; result in `unit`
    limit: float | None = None  # the goal, in `unit`


def run(quick: bool = False) -> list[dict[str, Any]]:
    """Run all; return name, unit, limit and either value or skipped (the reason) of each."""
    results: list[dict[str, Any]] = []
    for micro in MICROS:
        result: dict[str, Any] = {"name": micro.name, "unit": micro.unit, "limit": micro.limit}
        try:
            result["value"] = micro.measure(0.05 if quick else 0.5)
        except (ImportError, AttributeError) as error:
            result["skipped"] = f"{error}"
        results.append(result)
    return results


def time_ns(operation: Callable[[], object], seconds: float, operations: int = 1) -> float:
    """Return the median CPU nanoseconds of one of the `operations` in a call of `operation`."""
    calls = 1
    while (took := _time(operation, calls)) < seconds / REPEATS / 2:
        calls *= 2 if took else 16
    return median(_time(operation, calls) for _ in range(REPEATS)) * 1e9 / calls / operations


def _time(operation: Callable[[], object], calls: int) -> float:
    began = time.process_time()
    for _ in range(calls):
        operation()
    return time.process_time() - began


def _decode_publish(seconds: float) -> float:
    publish = import_module("flockmq._speedups.codec.packets").Publish(TOPIC_NAME, PAYLOAD)
    data = import_module("flockmq._speedups.codec.encode").encode(publish) * 100
    decoder = import_module("flockmq._speedups.codec.decode").Decoder()
    return time_ns(lambda: decoder.feed(data), seconds, 100)


def _encode_publish(seconds: float) -> float:
    packet = import_module("flockmq._speedups.codec.packets").Publish(TOPIC_NAME, PAYLOAD)
    encode = import_module("flockmq._speedups.codec.encode").encode
    return time_ns(lambda: encode(packet), seconds)


def _match_one(seconds: float) -> float:
    matches = import_module("flockmq._speedups.codec.topics").matches
    return time_ns(lambda: matches("site/+/dev/203/#", TOPIC_NAME), seconds)


def _validate_topic_name(seconds: float) -> float:
    validate = import_module("flockmq._speedups.codec.topics").validate_topic_name
    return time_ns(lambda: validate(TOPIC_NAME), seconds)


def _router() -> Any:
    """Return a router without a store."""
    turn = import_module("flockmq._speedups.session.turn").Turn(
        import_module("flockmq._speedups.session.journal").Journal()
    )
    limits = import_module("flockmq._speedups.session.turn_limits").TurnLimits(
        max_packet_size=1 << 20,
        max_topic_levels=200,
        max_inflight=100,
        max_queued_messages=1000,
        max_queued_bytes=1 << 20,
        drop_oldest=False,
        max_awaiting_release=1000,
        max_outgoing_bytes=1 << 22,
        max_uncommitted_bytes=1 << 25,
    )
    turn.set_limits(limits)
    return import_module("flockmq._speedups.routing.router").Router(turn)


def _session(router: Any, number: int) -> Any:
    """Return a clean session."""
    client_id = f"micro-{number}".encode()
    return import_module("flockmq._speedups.session.session").Session(router.turn, number, client_id, persistent=False)


@cache
def _filled_tree() -> tuple[Any, list[Any], float]:
    """Return a tree with `SUBSCRIPTIONS` filters of the shape "wild", its sessions, and the bytes per filter."""
    router = _router()
    sessions = [_session(router, number) for number in range(SUBSCRIPTIONS // FILTERS_PER_CLIENT)]
    meter = ProcessMeter([os.getpid()])
    before = meter.resident_bytes()
    for number in range(SUBSCRIPTIONS):
        router.filters.subscribe(sessions[number // FILTERS_PER_CLIENT], _wild_filter(number).encode(), 0)
    return router.filters, sessions, (meter.resident_bytes() - before) / router.filters.count


def _wild_filter(number: int) -> str:
    site, device, metric = number % SIDE, number // SIDE % SIDE, number % 10
    percent = number // FILTERS_PER_CLIENT % 100
    if percent < 5:
        return f"site/+/dev/{device}/#"
    return f"site/{site}/dev/+/m{metric}" if percent < 30 else f"site/{site}/dev/{device}/+"


def _tree_bytes(seconds: float) -> float:
    return _filled_tree()[2]


def _tree_match(seconds: float) -> float:
    tree = _filled_tree()[0]
    chance = random.Random(1)
    sides = [(chance.randrange(SIDE), chance.randrange(SIDE), chance.randrange(10)) for _ in range(1000)]
    names = [f"site/{site}/dev/{device}/m{metric}".encode() for site, device, metric in sides]

    def match_all() -> None:
        for name in names:
            tree.match_many(name, 1)

    return time_ns(match_all, seconds, len(names))


@cache
def _filled_retained() -> tuple[Any, float]:
    """A tree with `RETAINED` messages of 64 bytes and topic names of 32 characters, and the bytes of each."""
    tree = import_module("flockmq._speedups.routing.retained").RetainedTree()
    meter = ProcessMeter([os.getpid()])
    before = meter.resident_bytes()
    for number in range(RETAINED):
        tree.set(_retained_topic(number).encode(), PAYLOAD, 1)
    return tree, (meter.resident_bytes() - before) / RETAINED


def _retained_topic(number: int) -> str:
    device, sensor = divmod(number, SENSORS)
    return f"site{device % 100:03d}/area{device // 100 % 50:02d}/dev{device:06d}/sensor{sensor}"


def _retained_bytes(seconds: float) -> float:
    return _filled_retained()[1]


def _retained_search(seconds: float) -> float:
    tree = _filled_retained()[0]
    return time_ns(lambda: sum(1 for _ in tree.matching(b"+/+/+/sensor3")), seconds, RETAINED // SENSORS)


def _fan_out(seconds: float) -> float:
    router = _router()
    terms = import_module("flockmq._speedups.protocol.connection_terms").Terms()
    channels = [import_module("flockmq._speedups.protocol.channel").Channel(router, None) for _ in range(RECEIVERS)]
    for number, channel in enumerate(channels):
        session = _session(router, number)
        channel.accept(session, 4, 0, terms)
        router.filters.subscribe(session, TOPIC_NAME.encode(), 0)

    def publish() -> None:
        for _ in range(10):
            router.publish(TOPIC_NAME.encode(), PAYLOAD)
        for channel in channels:
            channel.take_output()
        router.turn.end()

    return time_ns(publish, seconds, 10 * RECEIVERS)


MICROS = (
    Micro("decode PUBLISH, 64 bytes, QoS 0, to an object", "ns", _decode_publish),
    Micro("encode PUBLISH, 64 bytes, QoS 0, from an object", "ns", _encode_publish),
    Micro("match one filter and one topic name", "ns", _match_one),
    Micro("validate a topic name", "ns", _validate_topic_name),
    Micro("1 M subscriptions, memory", "bytes each", _tree_bytes, limit=150),
    Micro("1 M subscriptions, match one topic name", "ns", _tree_match, limit=1000),
    Micro("1 M retained messages, memory", "bytes each", _retained_bytes, limit=200),
    Micro("1 M retained messages, find every tenth by +/+/+/sensor3, each", "ns", _retained_search),
    Micro("fan-out of a QoS 0 message to 1000 receivers, each", "ns", _fan_out),
)


if __name__ == "__main__":
    for line in run():
        print(f"{line['name']:<60} {line.get('value', 0.0):>10.1f} {line['unit']}  {line.get('skipped', '')}")
