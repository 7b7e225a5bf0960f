"""Whole runs of the generator: what is connected, for how long, and the figures that come out.

Every function returns a flat dict of numbers (and `error`, the reason of the first lost connection). Names end in
their unit: `_s`, `_us`, `_bytes`, `_per_s`; a name without one is a count. Every run is bounded in time.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from loadtest.generator import CONNECTING, CYCLING, DRAINING, HOLDING, PUBLISHING, Generator
from loadtest.process import ProcessMeter

Figures = dict[str, Any]

SHAPES = ("pairs", "fanout", "fanin", "wild")
INTERVAL = 0.25  # seconds between two looks at the broker's CPU time
_CHECKED = ("lost", "duplicates", "reordered", "misrouted", "foreign", "malformed", "refused", "closed")


class LoadError(Exception):
    """The run could not start: connections were refused, or the open-file limit is too low."""


def publish_load(
    shape: str = "pairs",
    *,
    port: int,
    host: str = "127.0.0.1",
    pids: Sequence[int] = (),
    publishers: int = 10,
    subscribers: int = 10,
    topics: int = 1_000_000,
    filters: int = 50,
    qos: int = 0,
    payload: int = 64,
    batch: int = 1,
    window: int = 20,
    backlog: int = 20_000,
    rate: float = 0.0,
    count: int = 0,
    seconds: float = 3.0,
    warm_up: float = 0.5,
    persistent: bool = False,
    connect_limit: float = 60.0,
    drain_limit: float = 10.0,
    settle: float = 0.2,
) -> Figures:
    """Publish through a broker, check what arrives, measure the broker.

    Args:
        shape: "pairs" (topic i: publisher i, subscriber i), "fanout" (one topic, all subscribe), "fanin" (a topic per
            publisher, all subscribe with `+`), "wild" (topics drawn at random, subscribers with many wildcard filters).
        port, host: the broker, on this machine.
        pids: the broker's processes; without them nothing is known of CPU time.
        publishers, subscribers: clients; pairs need as many of both.
        topics, filters: of "wild": topics in all, filters per subscriber.
        qos: of PUBLISH and SUBSCRIBE.
        payload: bytes, at least 32.
        batch: messages per write.
        window: unacknowledged messages per publisher.
        backlog: deliveries outstanding at which publishers pause; 0 leaves it to TCP.
        rate: messages per second over all publishers, for latencies; 0 is as many as possible.
        count: stop after so many messages over all publishers; 0 is no limit.
        seconds: of publishing, after the warm-up.
        warm_up: seconds left out of CPU, rates and latencies; none with a `count`.
        persistent: sessions are not clean; they stay in the broker afterwards.
        connect_limit, drain_limit: seconds that connecting and the last deliveries may take.
        settle: seconds between the last SUBACK and the first PUBLISH.

    Raises:
        LoadError: not every client could connect and subscribe.
    """
    _raise_file_limit(publishers + subscribers)
    generator = Generator(
        host=host, port=port, shape=shape, publishers=publishers, subscribers=subscribers, topics=topics,
        filters=filters, qos=qos, payload=payload, batch=batch, window=window, backlog=backlog, rate=rate, count=count,
        clean_session=not persistent, **_identity(),
    )  # fmt: skip
    _connect(generator, publishers + subscribers, connect_limit)
    generator.run(HOLDING, settle)
    meter = ProcessMeter(pids)
    if warm_up > 0 and not count:
        generator.run(PUBLISHING, warm_up)
    before, cpu_before, began = generator.figures(), meter.cpu_seconds(), time.monotonic()
    generator.forget_latencies()
    intervals = _publish(generator, meter, seconds)
    published_for = time.monotonic() - began
    published = generator.figures()
    _drain(generator, drain_limit)
    elapsed, cpu = time.monotonic() - began, meter.cpu_seconds() - cpu_before
    generator.run(HOLDING, 0.05)  # what is too much, duplicates above all, comes now
    after = generator.figures()
    delivered = after["received"] - before["received"]
    result: Figures = {
        "shape": shape,
        "qos": qos,
        "published": after["published"],
        "expected": after["expected"],
        "received": after["received"],
        "acknowledged": after["acknowledged"],
        "lost": max(0, after["expected"] - after["received"]),
        "publish_s": published_for,
        "elapsed_s": elapsed,
        "published_per_s": (published["published"] - before["published"]) / published_for,
        "delivered_per_s": delivered / elapsed,
        "latency_p50_us": generator.latency(0.5) / 1e3,
        "latency_p99_us": generator.latency(0.99) / 1e3,
        "latency_max_us": generator.latency(1.0) / 1e3,
        "late_max_us": after["late"] / 1e3,
        **_common(generator, after),
    }
    if pids:
        result["cpu_s"] = cpu
        result["cpu_us_per_delivery"] = cpu * 1e6 / delivered if delivered else 0.0
        result["cpu_us_per_delivery_median"] = median(intervals) if intervals else result["cpu_us_per_delivery"]
        result["cpu_share"] = cpu / elapsed
    generator.disconnect()
    return result


def hold_connections(
    connections: int = 5000,
    *,
    port: int,
    host: str = "127.0.0.1",
    pids: Sequence[int] = (),
    subscribe: bool = False,
    seconds: float = 5.0,
    settle: float = 1.0,
    keep_alive: int = 60,
    parallel: int = 100,
    connect_limit: float = 120.0,
) -> Figures:
    """Open idle connections, from many addresses in 127.0.0.0/8, hold them with pings, measure the broker.

    Args:
        connections: how many; this process opens a file for each.
        port, host, pids: as in `publish_load`. Memory means something only for a broker that was just started.
        subscribe: one subscription of its own for each.
        seconds: to hold them, after `settle` seconds, in which the broker comes to rest.
        keep_alive: seconds; each connection pings once in three quarters of it, all of them spread evenly.
        parallel: handshakes under way at once.
        connect_limit: seconds that connecting may take.

    Raises:
        LoadError: not every connection came about.
    """
    _raise_file_limit(connections)
    meter = ProcessMeter(pids)
    generator = Generator(
        host=host, port=port, idlers=connections, subscribe=subscribe, keep_alive=keep_alive, parallel=parallel,
        **_identity(),
    )  # fmt: skip
    memory_before, cpu_before, began = meter.resident_bytes(), meter.cpu_seconds(), time.monotonic()
    _connect(generator, connections, connect_limit)
    connected_in, cpu_connecting = time.monotonic() - began, meter.cpu_seconds() - cpu_before
    generator.run(HOLDING, settle)
    cpu_before, began = meter.cpu_seconds(), time.monotonic()
    generator.run(HOLDING, seconds)
    cpu_idle, held = meter.cpu_seconds() - cpu_before, time.monotonic() - began
    memory = meter.resident_bytes()
    figures = generator.figures()
    result: Figures = {
        "connections": connections,
        "connect_s": connected_in,
        "connections_per_s": connections / connected_in,
        "pings": figures["pings"],
        "pongs": figures["pongs"],
        **_common(generator, figures),
    }
    if pids:
        result["memory_before_bytes"] = memory_before
        result["memory_bytes"] = memory
        result["memory_per_connection_bytes"] = (memory - memory_before) / connections
        result["cpu_us_per_connect"] = cpu_connecting * 1e6 / connections
        result["idle_cpu_share"] = cpu_idle / held
    generator.disconnect()
    return result


def connect_load(
    *,
    port: int,
    host: str = "127.0.0.1",
    pids: Sequence[int] = (),
    parallel: int = 50,
    seconds: float = 3.0,
    warm_up: float = 0.3,
) -> Figures:
    """Connect, wait for CONNACK, disconnect, wait until the broker closes, and again.

    Args:
        port, host, pids: as in `publish_load`.
        parallel: how many do so at once, each with a client identifier of its own.
        seconds: after `warm_up` seconds.
    """
    _raise_file_limit(parallel)
    meter = ProcessMeter(pids)
    generator = Generator(host=host, port=port, cyclers=parallel, **_identity())
    generator.run(CYCLING, warm_up)
    before, cpu_before, began = generator.figures()["cycles"], meter.cpu_seconds(), time.monotonic()
    intervals: list[float] = []
    cpu, cycles = cpu_before, before
    while (left := began + seconds - time.monotonic()) > 0:
        generator.run(CYCLING, min(left, INTERVAL))
        cpu_last, cycles_last = cpu, cycles
        cpu, cycles = meter.cpu_seconds(), generator.figures()["cycles"]
        if cycles > cycles_last:
            intervals.append((cpu - cpu_last) * 1e6 / (cycles - cycles_last))
    elapsed = time.monotonic() - began
    figures = generator.figures()
    result: Figures = {
        "parallel": parallel,
        "connects": figures["cycles"],
        "connect_failures": figures["cycle_failures"],
        "connects_per_s": (cycles - before) / elapsed,
        **_common(generator, figures),
    }
    if pids and cycles > before:
        result["cpu_us_per_connect"] = (cpu - cpu_before) * 1e6 / (cycles - before)
        result["cpu_us_per_connect_median"] = median(intervals)
    generator.disconnect()
    return result


def find_faults(figures: Figures) -> list[str]:
    """Return what is wrong in the figures of a run, in words; losses at QoS 0 are allowed to a broker and count too."""
    faults = [f"{name}: {figures[name]}" for name in _CHECKED if figures.get(name)]
    if figures.get("error"):
        faults.append(figures["error"])
    return faults


def _publish(generator: Generator, meter: ProcessMeter, seconds: float) -> list[float]:
    """Publish for `seconds`; return the broker's CPU microseconds per delivery for each interval."""
    intervals: list[float] = []
    end = time.monotonic() + seconds
    cpu, received, done = meter.cpu_seconds(), generator.figures()["received"], False
    while not done and (left := end - time.monotonic()) > 0:
        done = generator.run(PUBLISHING, min(left, INTERVAL))
        cpu_last, received_last = cpu, received
        cpu, received = meter.cpu_seconds(), generator.figures()["received"]
        if left >= INTERVAL and not done and received > received_last:  # whole intervals only
            intervals.append((cpu - cpu_last) * 1e6 / (received - received_last))
    return intervals


def _drain(generator: Generator, limit: float) -> None:
    """Wait for what is outstanding, until nothing has come for a second or `limit` seconds are over."""
    end = time.monotonic() + limit
    progress, quiet_since = -1, time.monotonic()
    while time.monotonic() < end:
        if generator.run(DRAINING, 0.05):
            break
        figures = generator.figures()
        if (now := figures["received"] + figures["acknowledged"] + figures["duplicates"]) != progress:
            progress, quiet_since = now, time.monotonic()
        elif time.monotonic() - quiet_since > 1.0:
            break


def _connect(generator: Generator, connections: int, limit: float) -> None:
    end = time.monotonic() + limit
    while not (done := generator.run(CONNECTING, 0.25)) and time.monotonic() < end:
        pass
    ready = generator.figures()["ready"]
    if not done or ready < connections:
        reason = generator.first_error() or f"not done after {limit:g} s"
        raise LoadError(f"{connections - ready} of {connections} clients did not connect; {reason}")


def _common(generator: Generator, figures: dict[str, int]) -> Figures:
    names = ("duplicates", "reordered", "misrouted", "foreign", "malformed", "refused", "closed", "stalls")
    return {
        **{name: figures[name] for name in names},
        "stalled_s": figures["stalled"] / 1e9,
        "longest_stall_s": figures["longest_stall"] / 1e9,
        "error": generator.first_error(),
    }


def _identity() -> dict[str, Any]:
    """Return client prefix and run id, so that no run meets the sessions or messages of another."""
    run_id = random.SystemRandom().getrandbits(32)
    return {"client_prefix": f"load{run_id:08x}", "run_id": run_id}


def _raise_file_limit(connections: int) -> None:
    need = connections + 64 + len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and need > hard:
        raise LoadError(f"{need} open files are needed and {hard} allowed; raise `ulimit -Hn` or connect fewer")
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
