"""Micro-benchmarks of the compiled modules, in one process and without a socket.

A row of `MICROS` is a name, a unit, a function that prepares and measures, and a goal. The function imports what it
needs; what does not exist yet is reported as skipped, with the reason. `python -m loadtest.micro` prints them all.
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

from loadtest.generator.cost import ProcessMeter

_REPEATS = 7
_TOPIC_NAME = "site/17/dev/203/m4"
_PAYLOAD = b"x" * 64
_SUBSCRIPTIONS = 1_000_000
_FILTERS_PER_CLIENT = 50
_RECEIVERS = 1000
_SIDE = 316  # sites, and devices of each: as many topics as subscriptions, with ten metrics each


@dataclass(frozen=True)
class Micro:
    """One micro-benchmark."""

    name: str
    unit: str
    measure: Callable[[float], float]  # argument: seconds it may take, about; result in `unit`
    at_most: float | None = None  # the goal, in `unit`


def run(quick: bool = False) -> list[dict[str, Any]]:
    """Run all; return name, unit, at_most and either value or skipped (why) of each."""
    results: list[dict[str, Any]] = []
    for micro in MICROS:
        result: dict[str, Any] = {"name": micro.name, "unit": micro.unit, "at_most": micro.at_most}
        try:
            result["value"] = micro.measure(0.05 if quick else 0.5)
        except (ImportError, AttributeError) as error:
            result["skipped"] = f"{error}"
        results.append(result)
    return results


def time_ns(operation: Callable[[], object], seconds: float, operations: int = 1) -> float:
    """Return the median CPU nanoseconds for one of the `operations` that a call of `operation` does."""
    calls = 1
    while (took := _time(operation, calls)) < seconds / _REPEATS / 2:
        calls *= 2 if took else 16
    return median(_time(operation, calls) for _ in range(_REPEATS)) * 1e9 / calls / operations


def _time(operation: Callable[[], object], calls: int) -> float:
    began = time.process_time()
    for _ in range(calls):
        operation()
    return time.process_time() - began


def _decode_publish(seconds: float) -> float:
    publish = import_module("_speedups.codec.packets").Publish(_TOPIC_NAME, _PAYLOAD)
    data = import_module("_speedups.codec.encode").encode(publish) * 100
    decoder = import_module("_speedups.codec.decode").Decoder()
    return time_ns(lambda: decoder.feed(data), seconds, 100)


def _encode_publish(seconds: float) -> float:
    packet = import_module("_speedups.codec.packets").Publish(_TOPIC_NAME, _PAYLOAD)
    encode = import_module("_speedups.codec.encode").encode
    return time_ns(lambda: encode(packet), seconds)


def _match_one(seconds: float) -> float:
    matches = import_module("_speedups.codec.topics").matches
    return time_ns(lambda: matches("site/+/dev/203/#", _TOPIC_NAME), seconds)


def _validate_topic_name(seconds: float) -> float:
    validate = import_module("_speedups.codec.topics").validate_topic_name
    return time_ns(lambda: validate(_TOPIC_NAME), seconds)


def _router() -> Any:
    """Return a router that keeps nothing on disk."""
    turn = import_module("_speedups.session.turn").Turn(import_module("_speedups.session.journal").Journal())
    turn.set_limits(
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
    return import_module("_speedups.routing.router").Router(turn)


def _session(router: Any, number: int) -> Any:
    """Return a clean session."""
    client_id = f"micro-{number}".encode()
    return import_module("_speedups.session.session").Session(router.turn, number, client_id, persistent=False)


@cache
def _filled_tree() -> tuple[Any, list[Any], float]:
    """Return a tree with `_SUBSCRIPTIONS` filters of the kinds of the "wild" shape, its sessions, the bytes of each."""
    router = _router()
    sessions = [_session(router, number) for number in range(_SUBSCRIPTIONS // _FILTERS_PER_CLIENT)]
    meter = ProcessMeter([os.getpid()])
    before = meter.resident_bytes()
    for number in range(_SUBSCRIPTIONS):
        router.filters.subscribe(sessions[number // _FILTERS_PER_CLIENT], _wild_filter(number).encode(), 0)
    return router.filters, sessions, (meter.resident_bytes() - before) / router.filters.count


def _wild_filter(number: int) -> str:
    site, device, metric = number % _SIDE, number // _SIDE % _SIDE, number % 10
    percent = number // _FILTERS_PER_CLIENT % 100
    if percent < 5:
        return f"site/+/dev/{device}/#"
    return f"site/{site}/dev/+/m{metric}" if percent < 30 else f"site/{site}/dev/{device}/+"


def _tree_bytes(seconds: float) -> float:
    return _filled_tree()[2]


def _tree_match(seconds: float) -> float:
    tree = _filled_tree()[0]
    chance = random.Random(1)
    sides = [(chance.randrange(_SIDE), chance.randrange(_SIDE), chance.randrange(10)) for _ in range(1000)]
    names = [f"site/{site}/dev/{device}/m{metric}".encode() for site, device, metric in sides]

    def match_all() -> None:
        for name in names:
            tree.match_many(name, 1)

    return time_ns(match_all, seconds, len(names))


def _fan_out(seconds: float) -> float:
    router = _router()
    channels = [import_module("_speedups.protocol.channel").Channel(router, None) for _ in range(_RECEIVERS)]
    for number, channel in enumerate(channels):
        session = _session(router, number)
        channel.accept(session, 4, 0)
        router.filters.subscribe(session, _TOPIC_NAME.encode(), 0)

    def publish() -> None:
        for _ in range(10):
            router.publish(_TOPIC_NAME.encode(), _PAYLOAD)
        for channel in channels:
            channel.take_output()
        router.turn.end()

    return time_ns(publish, seconds, 10 * _RECEIVERS)


MICROS = (
    Micro("decode PUBLISH, 64 bytes, QoS 0, to an object", "ns", _decode_publish),
    Micro("encode PUBLISH, 64 bytes, QoS 0, from an object", "ns", _encode_publish),
    Micro("match one filter and one topic name", "ns", _match_one),
    Micro("validate a topic name", "ns", _validate_topic_name),
    Micro("1 M subscriptions, memory", "bytes each", _tree_bytes, at_most=150),
    Micro("1 M subscriptions, match one topic name", "ns", _tree_match, at_most=1000),
    Micro("fan-out of a QoS 0 message to 1000 receivers, each", "ns", _fan_out),
)


if __name__ == "__main__":
    for line in run():
        print(f"{line['name']:<60} {line.get('value', 0.0):>10.1f} {line['unit']}  {line.get('skipped', '')}")
