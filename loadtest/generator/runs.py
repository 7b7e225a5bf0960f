"""Whole runs of the generator: what is connected, for how long, and the figures that come out.

Every function returns a flat dict of numbers (and `error`, the reason of the first lost connection). Names end in
their unit: `_s`, `_us`, `_bytes`, `_per_s`; a name without one is a count. Every run is bounded in time.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loadtest.generator.cost import Cost, Counts, Figures, Groups, ProcessMeter
from loadtest.generator.generator import CONNECTING, CYCLING, DRAINING, HOLDING, HOPPING, PUBLISHING, Generator
from loadtest.generator.latency import Latencies

SHAPES = ("pairs", "fanout", "fanin", "wild")
INTERVAL = 0.25  # seconds between two looks at the broker's CPU time
_CHECKED = (
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
    """What somebody beside wants to know and say while a run goes on."""

    look: Callable[[str, float, int], object] = lambda phase, share, done: None  # a few times a second
    ready: Callable[[], object] = lambda: None  # all is connected: may wait for other processes


UNWATCHED = Watch()


class LoadError(Exception):
    """The run could not start: connections were refused, or the open-file limit is too low."""


class Login(NamedTuple):
    """What clients say in CONNECT; "" = nothing."""

    username: str = ""
    password: str = ""


NOBODY = Login()


def publish_load(
    shape: str = "pairs",
    *,
    port: int,
    publish_host: str = "",
    publish_port: int = 0,
    host: str = "127.0.0.1",
    transport: str = "mqtt",
    path: str = "/mqtt",
    pids: Sequence[int] = (),
    login: Login = NOBODY,
    groups: Groups | None = None,
    counts: Counts | None = None,
    topic_prefix: str = "",
    watch: Watch = UNWATCHED,
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
        port, host: the broker, by its IPv4 address.
        transport, path: "mqtt", "mqtts", "ws" or "wss"; of the two last the path.
        publish_host, publish_port: where publishers connect, when that is another node than the subscribers'.
        pids: the broker's processes, on this machine; without them nothing is known of CPU time.
        login: user name and password of all clients.
        groups: some of its processes, to be told apart; the figure `x` of group "redis" is `x_redis`.
        counts: read before and after; the growth of counter `c` is `c_per_s`, and `c_per_delivery`.
        topic_prefix: of all topics, so that runs side by side don't meet.
        watch: told of the progress.
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
        host=host,
        port=port,
        transport=transport,
        path=path,
        shape=shape,
        publishers=publishers,
        subscribers=subscribers,
        topics=topics,
        filters=filters,
        qos=qos,
        payload=payload,
        batch=batch,
        window=window,
        backlog=backlog,
        rate=rate,
        count=count,
        clean_session=not persistent,
        publish_host=publish_host,
        publish_port=publish_port,
        topic_prefix=topic_prefix,
        **_identity(login),
    )
    _connect(generator, publishers + subscribers, connect_limit, watch)
    watch.ready()
    generator.run(HOLDING, settle)
    cost = Cost("delivery", pids, groups, counts)
    if warm_up > 0 and not count:
        generator.run(PUBLISHING, warm_up)
    before = generator.figures()
    cost.begin(before["received"])
    began = time.monotonic()
    generator.forget_latencies()
    _publish(generator, cost, seconds, watch)
    published_for = time.monotonic() - began
    published = generator.figures()
    _drain(generator, drain_limit)
    elapsed = time.monotonic() - began
    cost.end()
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
    generator.disconnect()
    return result


def hold_connections(
    connections: int = 5000,
    *,
    port: int,
    host: str = "127.0.0.1",
    transport: str = "mqtt",
    path: str = "/mqtt",
    pids: Sequence[int] = (),
    login: Login = NOBODY,
    groups: Groups | None = None,
    counts: Counts | None = None,
    watch: Watch = UNWATCHED,
    subscribe: bool = False,
    seconds: float = 5.0,
    settle: float = 1.0,
    keep_alive: int = 60,
    parallel: int = 100,
    connect_limit: float = 120.0,
) -> Figures:
    """Open idle connections, hold them with pings, measure the broker.

    To this machine they come from many addresses in 127.0.0.0/8.

    Args:
        connections: how many; this process opens a file for each.
        port, host, transport, path, pids, login, groups, counts, watch: as in `publish_load`; CPU of groups and counts
            are those while held.
            Memory means something only for a broker that was just started.
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
        host=host,
        port=port,
        transport=transport,
        path=path,
        idlers=connections,
        subscribe=subscribe,
        keep_alive=keep_alive,
        parallel=parallel,
        **_identity(login),
    )
    memory_before, cpu_before, began = meter.resident_bytes(), meter.cpu_seconds(), time.monotonic()
    _connect(generator, connections, connect_limit, watch)
    connected_in, cpu_connecting = time.monotonic() - began, meter.cpu_seconds() - cpu_before
    watch.ready()
    generator.run(HOLDING, settle)
    cost = Cost("connection", (), groups, counts)
    cost.begin(0)
    cpu_before, began = meter.cpu_seconds(), time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        generator.run(HOLDING, min(left, INTERVAL))
        watch.look("holding", 1 - left / seconds, connections)
    cpu_idle, held = meter.cpu_seconds() - cpu_before, time.monotonic() - began
    cost.end()
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
    result |= cost.figures(connections, held)
    generator.disconnect()
    return result


def connect_load(
    *,
    port: int,
    host: str = "127.0.0.1",
    transport: str = "mqtt",
    path: str = "/mqtt",
    pids: Sequence[int] = (),
    login: Login = NOBODY,
    groups: Groups | None = None,
    watch: Watch = UNWATCHED,
    parallel: int = 50,
    persistent: bool = False,
    seconds: float = 3.0,
    warm_up: float = 0.3,
) -> Figures:
    """Connect, wait for CONNACK, disconnect, wait until the broker closes, and again.

    Args:
        port, host, transport, path, pids, login, groups, watch: as in `publish_load`.
        parallel: how many do so at once, each with a client identifier of its own.
        persistent: sessions are not clean: each is made once and found again ever after.
        seconds: after `warm_up` seconds.
    """
    _raise_file_limit(parallel)
    cost = Cost("connect", pids, groups)
    generator = Generator(
        host=host,
        port=port,
        transport=transport,
        path=path,
        cyclers=parallel,
        clean_session=not persistent,
        **_identity(login),
    )
    watch.ready()
    generator.run(CYCLING, warm_up)
    before = generator.figures()["cycles"]
    cost.begin(before)
    began = time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        generator.run(CYCLING, min(left, INTERVAL))
        cycles = generator.figures()["cycles"]
        cost.look(cycles)
        watch.look("connecting and disconnecting", 1 - left / seconds, cycles)
    elapsed = time.monotonic() - began
    cost.end()
    figures = generator.figures()
    connects = figures["cycles"] - before
    result: Figures = {
        "parallel": parallel,
        "connects": figures["cycles"],
        "connect_failures": figures["cycle_failures"],
        "connects_per_s": connects / elapsed,
        **_common(generator, figures),
    }
    if connects:
        result |= cost.figures(connects, elapsed)
    generator.disconnect()
    return result


def take_over_load(
    *,
    port: int,
    publish_host: str = "",
    publish_port: int = 0,
    host: str = "127.0.0.1",
    transport: str = "mqtt",
    path: str = "/mqtt",
    pids: Sequence[int] = (),
    login: Login = NOBODY,
    groups: Groups | None = None,
    watch: Watch = UNWATCHED,
    clients: int = 1000,
    rate: float = 300.0,
    persistent: bool = False,
    seconds: float = 3.0,
    connect_limit: float = 60.0,
) -> Figures:
    """Connect clients that are connected already, at the one port and at the other in turn; time CONNECT to CONNACK.

    Args:
        port, host, transport, path, publish_host, publish_port: two nodes, or one.
        pids, login, groups, watch: as in `publish_load`.
        clients: how many, in turn; each is taken over again only after its old connection was closed. A broker may
            make clients wait that take each other's session over and over, so let there be many.
        rate: take-overs per second in all; 0 is as many as possible.
        persistent: sessions are not clean, and each has a subscription.
        seconds: of taking over.
        connect_limit: seconds that the first connections may take.

    Raises:
        LoadError: not every client could connect at first.
    """
    _raise_file_limit(2 * clients)
    cost = Cost("take_over", pids, groups)
    generator = Generator(
        host=host,
        port=port,
        transport=transport,
        path=path,
        publish_host=publish_host,
        publish_port=publish_port,
        hoppers=clients,
        rate=rate,
        clean_session=not persistent,
        subscribe=persistent,
        **_identity(login),
    )
    _connect(generator, clients, connect_limit, watch)
    watch.ready()
    generator.run(HOLDING, 0.2)
    cost.begin(0)
    began = time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        generator.run(HOPPING, min(left, INTERVAL))
        cycles = generator.figures()["cycles"]
        cost.look(cycles)
        watch.look("taking over", 1 - left / seconds, cycles)
    generator.run(HOLDING, 0.2)  # for those under way
    elapsed = time.monotonic() - began
    cost.end()
    figures = generator.figures()
    result: Figures = {
        "clients": clients,
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
    """Return what is wrong in the figures of a run, in words; losses at QoS 0 are allowed to a broker and count too."""
    faults = [f"{name}: {figures[name]}" for name in _CHECKED if figures.get(name)]
    if figures.get("error"):
        faults.append(figures["error"])
    return faults


def _publish(generator: Generator, cost: Cost, seconds: float, watch: Watch) -> None:
    """Publish for `seconds`."""
    end = time.monotonic() + seconds
    done = False
    while not done and (left := end - time.monotonic()) > 0:
        done = generator.run(PUBLISHING, min(left, INTERVAL))
        received = generator.figures()["received"]
        cost.look(received, whole=left >= INTERVAL and not done)
        watch.look("publishing", 1 - left / seconds, received)


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


def _identity(login: Login) -> dict[str, Any]:
    """Return who the clients are: with a prefix and a run id, so that no run meets what another leaves or sends."""
    run_id = random.SystemRandom().getrandbits(32)
    return {"client_prefix": f"load{run_id:08x}", "run_id": run_id, **login._asdict()}


def _raise_file_limit(connections: int) -> None:
    need = connections + 64 + len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and need > hard:
        raise LoadError(f"{need} open files are needed and {hard} allowed; raise `ulimit -Hn` or connect fewer")
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
