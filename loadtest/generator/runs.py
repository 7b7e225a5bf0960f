"""Runs of the generator against a broker: load it, check every message, measure it.

Every run returns a flat dict of numbers (and `error`, the reason of the first lost connection). Names end in their
unit: `_s`, `_us`, `_bytes`, `_per_s`; a name without one is a count. Every run is bounded in time.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .cost import Cost, Figures, ProcessMeter
from .generator import (
    CONNECTING,
    DRAINING,
    HOLDING,
    PUBLISHING,
    RECONNECTING,
    TAKING_OVER,
    Generator,
)
from .latency import Latencies
from .settings import Settings
from .skew import Skew
from .target import IdleLoad, ReconnectLoad, TakeOverLoad, Target, Workload

SURPLUS = 0.05  # seconds after the last delivery for messages that come once more
RETURN = 0.5  # seconds for dying subscribers to return and to receive their messages again
INTERVAL = 0.25  # seconds between two looks at the broker's CPU time
CHECKED = (
    "lost",
    "duplicates",
    "reordered",
    "misrouted",
    "foreign",
    "malformed",
    "refused",
    "closed",
    "take_over_failures",
)


class Watch(NamedTuple):
    """Callbacks of a run."""

    look: Callable[[str, float, int], object] = lambda phase, share, done: None  # a few times a second: progress
    ready: Callable[[], object] = lambda: None  # all is connected; may wait for other processes


UNWATCHED = Watch()


class LoadError(Exception):
    """The run could not start: connections were refused, or the open-file limit is too low."""


def publish_load(target: Target, load: Workload, watch: Watch = UNWATCHED) -> Figures:
    """Publish through a broker, check the deliveries, measure the broker.

    Raises:
        LoadError: a client could not connect and subscribe.
        ValueError: a value of target or load is out of range.
    """
    clients = load.publishers + load.subscribers
    _raise_file_limit(clients)
    generator = Generator(_settings(target, workload=load))
    _connect(generator, clients, load.connect_limit, watch)
    watch.ready()
    generator.run(HOLDING, load.settle)
    cost = Cost("delivery", target.pids, target.groups, target.counts)
    if load.warm_up > 0 and not load.count:
        generator.run(PUBLISHING, load.warm_up)
    before = generator.figures()
    cost.begin(before["received"])
    began = time.monotonic()
    generator.forget_latencies()
    skew = Skew(load, generator.group_received) if load.shape == "shared" else None
    _publish(generator, cost, load.seconds, watch, skew)
    published_for = time.monotonic() - began
    published = generator.figures()
    _drain(generator, load.drain_limit)
    elapsed = time.monotonic() - began
    cost.end()
    generator.run(HOLDING, SURPLUS + (load.away + RETURN if load.dying else 0))
    after = generator.figures()
    delivered = after["received"] - before["received"]
    result: Figures = {
        "shape": load.shape,
        "qos": load.qos,
        "published": after["published"],
        "expected": after["expected"],
        "received": after["received"],
        "acknowledged": after["acknowledged"],
        "lost": max(0, after["expected"] - after["received"]),
        "delivered": delivered,
        "publish_s": published_for,
        "elapsed_s": elapsed,
        "published_per_s": (published["published"] - before["published"]) / published_for,
        "delivered_per_s": delivered / elapsed,
        **_latencies(generator),
        "late_max_us": after["late"] / 1e3,
        **_common(generator, after),
    }
    result |= cost.figures(delivered, elapsed)
    if skew:
        result |= skew.figures() | {name: after[name] for name in ("cuts", "repeated", "returned")}
    generator.disconnect()
    return result


def hold_connections(target: Target, load: IdleLoad, watch: Watch = UNWATCHED) -> Figures:
    """Open idle connections, hold them with pings, measure the broker.

    On this machine they use many source addresses in 127.0.0.0/8. CPU time of groups, and counts, are those while the
    connections are held. Memory is only meaningful for a broker that was just started.

    Raises:
        LoadError: a connection failed.
        ValueError: a value of target or load is out of range.
    """
    _raise_file_limit(load.connections)
    meter = ProcessMeter(target.pids)
    generator = Generator(
        _settings(
            target,
            idle=load.connections,
            subscribe=load.subscribe,
            keep_alive=load.keep_alive,
            parallel=load.parallel,
        )
    )
    memory_before, cpu_before, began = meter.resident_bytes(), meter.cpu_seconds(), time.monotonic()
    _connect(generator, load.connections, load.connect_limit, watch)
    connected_in, cpu_connecting = time.monotonic() - began, meter.cpu_seconds() - cpu_before
    watch.ready()
    generator.run(HOLDING, load.settle)
    cost = Cost("connection", (), target.groups, target.counts)
    cost.begin(0)
    cpu_before, began = meter.cpu_seconds(), time.monotonic()
    while (left := began + load.seconds - time.monotonic()) > 0:
        generator.run(HOLDING, min(left, INTERVAL))
        watch.look("holding", 1 - left / load.seconds, load.connections)
    cpu_idle, held = meter.cpu_seconds() - cpu_before, time.monotonic() - began
    cost.end()
    memory = meter.resident_bytes()
    figures = generator.figures()
    result: Figures = {
        "connections": load.connections,
        "connect_s": connected_in,
        "connections_per_s": load.connections / connected_in,
        "pings": figures["pings"],
        "pongs": figures["pongs"],
        **_common(generator, figures),
    }
    if target.pids:
        result["memory_before_bytes"] = memory_before
        result["memory_bytes"] = memory
        result["memory_per_connection_bytes"] = (memory - memory_before) / load.connections
        result["cpu_us_per_connect"] = cpu_connecting * 1e6 / load.connections
        result["idle_cpu_share"] = cpu_idle / held
    result |= cost.figures(load.connections, held)
    generator.disconnect()
    return result


def connect_load(target: Target, load: ReconnectLoad, watch: Watch = UNWATCHED) -> Figures:
    """Connect, wait for CONNACK, disconnect, wait until the broker closes, and again.

    Raises:
        LoadError: the open-file limit is too low.
        ValueError: a value of target or load is out of range.
    """
    _raise_file_limit(load.parallel)
    cost = Cost("connect", target.pids, target.groups)
    workload = Workload(publishers=0, subscribers=0, persistent=load.persistent)
    generator = Generator(_settings(target, workload=workload, reconnect=load.parallel))
    watch.ready()
    generator.run(RECONNECTING, load.warm_up)
    before = generator.figures()["cycles"]
    cost.begin(before)
    began = time.monotonic()
    while (left := began + load.seconds - time.monotonic()) > 0:
        generator.run(RECONNECTING, min(left, INTERVAL))
        cycles = generator.figures()["cycles"]
        cost.look(cycles)
        watch.look("connecting and disconnecting", 1 - left / load.seconds, cycles)
    elapsed = time.monotonic() - began
    cost.end()
    figures = generator.figures()
    connects = figures["cycles"] - before
    result: Figures = {
        "parallel": load.parallel,
        "connects": figures["cycles"],
        "connect_failures": figures["cycle_failures"],
        "connects_per_s": connects / elapsed,
        **_common(generator, figures),
    }
    if connects:
        result |= cost.figures(connects, elapsed)
    generator.disconnect()
    return result


def take_over_load(target: Target, load: TakeOverLoad, watch: Watch = UNWATCHED) -> Figures:
    """Connect clients that are connected already; measure the time from CONNECT to CONNACK.

    Raises:
        LoadError: a client's first connection failed.
        ValueError: a value of target or load is out of range.
    """
    _raise_file_limit(2 * load.clients)
    cost = Cost("take_over", target.pids, target.groups)
    workload = Workload(publishers=0, subscribers=0, rate=load.rate, persistent=load.persistent)
    generator = Generator(_settings(target, workload=workload, take_over=load.clients, subscribe=load.persistent))
    _connect(generator, load.clients, load.connect_limit, watch)
    watch.ready()
    generator.run(HOLDING, 0.2)
    cost.begin(0)
    began = time.monotonic()
    while (left := began + load.seconds - time.monotonic()) > 0:
        generator.run(TAKING_OVER, min(left, INTERVAL))
        cycles = generator.figures()["cycles"]
        cost.look(cycles)
        watch.look("taking over", 1 - left / load.seconds, cycles)
    generator.run(HOLDING, 0.2)  # for those under way
    elapsed = time.monotonic() - began
    cost.end()
    figures = generator.figures()
    result: Figures = {
        "clients": load.clients,
        "take_overs": figures["cycles"],
        "take_over_failures": figures["cycle_failures"],
        "take_overs_per_s": figures["cycles"] / elapsed,
        **_latencies(generator),
        **_common(generator, figures),
        **cost.figures(figures["cycles"], elapsed),
    }
    generator.disconnect()
    return result


def find_faults(figures: Figures) -> list[str]:
    """Return the faults in the figures of a run, in words; losses at QoS 0 count, too, although MQTT allows them."""
    faults = [f"{name}: {figures[name]}" for name in CHECKED if figures.get(name)]
    if figures.get("error"):
        faults.append(figures["error"])
    return faults


def _publish(generator: Generator, cost: Cost, seconds: float, watch: Watch, skew: Skew | None) -> None:
    """Publish for `seconds`."""
    end = time.monotonic() + seconds
    done = False
    if skew:
        skew.begin()
    while not done and (left := end - time.monotonic()) > 0:
        done = generator.run(PUBLISHING, min(left, INTERVAL))
        received = generator.figures()["received"]
        cost.look(received, whole=left >= INTERVAL and not done)
        watch.look("publishing", 1 - left / seconds, received)
        if skew:
            skew.look()


def _drain(generator: Generator, limit: float) -> None:
    """Wait for outstanding messages, until none has arrived for a second or `limit` seconds are over."""
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


def _connect(generator: Generator, connections: int, limit: float, watch: Watch) -> None:
    end = time.monotonic() + limit
    while not (done := generator.run(CONNECTING, 0.25)) and time.monotonic() < end:
        ready = generator.figures()["ready"]
        watch.look("connecting", ready / connections, ready)
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


def _latencies(generator: Generator) -> Figures:
    latencies = Latencies(generator.latencies())
    return {**latencies.figures(), "latencies": latencies}


def _settings(target: Target, **values: Any) -> Settings:
    """Settings with their own client prefix and run id, so that no run meets the remains of another."""
    run_id = random.SystemRandom().getrandbits(32)
    return Settings(target=target, client_prefix=f"load{run_id:08x}", run_id=run_id, **values)


def _raise_file_limit(connections: int) -> None:
    need = connections + 64 + len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and need > hard:
        raise LoadError(f"{need} open files are needed and {hard} allowed; raise `ulimit -Hn` or connect fewer clients")
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
