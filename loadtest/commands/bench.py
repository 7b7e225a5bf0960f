"""`flockmq bench SHAPE`: measures a broker under load and checks its deliveries.

Exit status: 0 without faults; 1 it could not run; 2 the command line is wrong; 3 messages were lost (QoS 1 and 2),
duplicated, reordered or misrouted, or connections were lost.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..generator.cost import Figures, ProcessMeter
from ..generator.multiprocess import own_topics, run_in
from ..generator.port_owner import listening_pids
from ..generator.runs import (
    LoadError,
    Watch,
    connect_load,
    find_faults,
    hold_connections,
    publish_load,
    take_over_load,
)
from ..generator.settings import ALIASES
from ..generator.target import IdleLoad, Load, ReconnectLoad, TakeOverLoad, Target, Workload
from .bench_report import Progress, as_json, describe
from .parser import Parser

T = TypeVar("T", int, float)
EXAMPLES = """\
shapes:
  pairs         publisher i to subscriber i [10 and 10]
  fan-out       one publisher to all subscribers [1 and 1000]
  fan-in        all publishers to one subscriber [100 and 1]
  shared        each message to one of the subscribers, by a shared subscription [10 and 10]
  wild          a million topics, subscribers with many wildcard filters [10 and 100]
  connections   open idle connections and hold them [5000]
  connects      connect and disconnect, over and over [50 at a time]
  take-overs    connect clients that are already connected [1000]

examples:
  flockmq bench                                        as many messages as the broker on this machine accepts
  flockmq bench --qos 1 --processes 2                  twice, side by side
  flockmq bench fan-out --subscribers 5000 --rate 100  latency at a given load
  flockmq bench --level 5 --properties 60 --ids        MQTT 5.0: properties, subscription identifiers
  flockmq bench --url mqtts://127.0.0.1                the same over TLS; any certificate is accepted
  flockmq bench connections --connections 15000
  flockmq bench --host 10.0.0.5 --publish-host 10.0.0.6 --json > result.json
  flockmq bench shared --qos 2 --persistent --slow 1 --dying 2 --host 10.0.0.5 --host 10.0.0.6
                                                       subscribers at two nodes; two of them die each second
"""
PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}  # defaults
MAX_QUEUED = 500  # outstanding messages of QoS 1 and 2 per subscriber: half of Mosquitto's limit
GENERAL = (
    "shape",
    "hosts",
    "publish_host",
    "level",
    "username",
    "password",
    "processes",
    "pids",
    "seconds",
    "json",
    "hdr",
)
MESSAGES = (
    "publishers",
    "subscribers",
    "qos",
    "payload",
    "properties",
    "ids",
    "alias",
    "batch",
    "window",
    "backlog",
    "rate",
    "count",
    "warm_up",
    "persistent",
)


class Shape(NamedTuple):
    """A kind of run: its function, its load, its options and their defaults."""

    run: Callable[[Target, Any, Watch], Figures]
    load: type[Load]
    options: tuple[str, ...]
    defaults: dict[str, Any]


def messages(kind: str, publishers: int, subscribers: int, *options: str) -> Shape:
    """A shape that publishes."""
    defaults = {"shape": kind, "publishers": publishers, "subscribers": subscribers, "qos": 0, "payload": 64}
    return Shape(publish_load, Workload, MESSAGES + options, defaults)


SHAPES = {
    "pairs": messages("pairs", 10, 10),
    "fan-out": messages("fanout", 1, 1000),
    "fan-in": messages("fanin", 100, 1),
    "shared": messages("shared", 10, 10, "slow", "slow_rate", "dying", "dies_every", "away"),
    "wild": messages("wild", 10, 100, "topics", "filters"),
    "connections": Shape(hold_connections, IdleLoad, ("connections", "subscribe", "keep_alive"), {"connections": 5000}),
    "connects": Shape(connect_load, ReconnectLoad, ("parallel", "persistent", "warm_up"), {"parallel": 50}),
    "take-overs": Shape(take_over_load, TakeOverLoad, ("clients", "rate", "persistent"), {"clients": 1000}),
}


def run(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = make_parser()
    asked = parser.parse_args(arguments)
    asked.hosts = asked.hosts or ["127.0.0.1:1883"]
    quiet = asked.json or not sys.stderr.isatty()
    progress = Progress(sys.stderr)
    watch = Watch() if quiet else Watch(progress.look, progress.begin)
    try:
        options = make_options(asked)
        target, load = split_options(asked, options)
        figures = run_in(asked.processes, SHAPES[asked.shape].run, target, load, watch)
    except (LoadError, ValueError, OSError) as error:
        progress.clear()
        print(f"flockmq: error: {error}", file=sys.stderr)
        return 1
    progress.clear()
    print(as_json(figures, options) if asked.json else describe(asked, options, figures))
    if asked.hdr and "latencies" in figures:
        try:
            asked.hdr.write_text("\n".join(figures["latencies"].lines()) + "\n")
        except OSError as error:
            print(f"flockmq: error: {error}", file=sys.stderr)
            return 1
    faults = [fault for fault in find_faults(figures) if figures.get("qos") or not fault.startswith("lost")]
    for fault in faults:
        print(f"flockmq: fault: {fault}", file=sys.stderr)
    return 3 if faults else 0


def make_options(asked: argparse.Namespace) -> dict[str, Any]:
    """The options of the run, as its JSON output has them.

    Raises:
        LoadError: an option does not apply to the shape, or a host can't be resolved.
    """
    shape = SHAPES[asked.shape]
    given = {name: value for name, value in vars(asked).items() if name not in GENERAL and value is not None}
    for name in given:
        if name not in shape.options:
            raise LoadError(f"--{name.replace('_', '-')} does not apply to {asked.shape}")
    if asked.shape == "pairs":  # as many of both
        clients = {given[name] for name in ("publishers", "subscribers") if name in given}
        if len(clients) > 1:
            raise LoadError("pairs need as many publishers as subscribers: set one of the two")
        for number in clients:
            given |= {"publishers": number, "subscribers": number}
    host, port, transport, path = resolve(asked.hosts[0])
    options = {"host": host, "port": port, "transport": transport, "path": path, "seconds": asked.seconds}
    options["level"] = asked.level
    options |= {**shape.defaults, **given}
    places = [(host, port)]
    if len(asked.hosts) > 1:
        if shape.run is not publish_load:
            raise LoadError(f"several --host do not apply to {asked.shape}")
        options["more_hosts"] = [resolve_another("--host", transport, more) for more in asked.hosts[1:]]
        places += options["more_hosts"]
    if shape.run is publish_load:
        options["topic_prefix"] = own_topics()
        if options["qos"]:  # an overflow of queues would be counted as loss
            options.setdefault("backlog", min(20_000, MAX_QUEUED * options["subscribers"]))
    if asked.publish_host:
        publish_host, publish_port = resolve_another("--publish-host", transport, asked.publish_host)
        places.append((publish_host, publish_port))
        options |= {"publish_host": publish_host, "publish_port": publish_port}
    ProcessMeter(asked.pids or ())  # raises if a process does not exist
    options["pids"] = asked.pids or sorted({pid for place in places for pid in pids_at(*place)})
    return options


def split_options(asked: argparse.Namespace, options: dict[str, Any]) -> tuple[Target, Load]:
    """The target and the load of the options."""
    login = {"username": asked.username, "password": asked.password}
    load = SHAPES[asked.shape].load
    names = {field.name for field in fields(Target)}
    target = Target(**login, **{name: value for name, value in options.items() if name in names})
    return target, load(**{name: value for name, value in options.items() if name not in names})


def resolve(address: str) -> tuple[str, int, str, str]:
    """The IPv4 address, the port, the transport and the path of [SCHEME://]HOST[:PORT][/PATH]. Raises LoadError."""
    transport, _, rest = address.rpartition("://")
    place, slash, path = rest.partition("/")
    host, _, port = place.partition(":")
    if transport and transport not in PORTS:
        raise LoadError(f"{address!r}: the scheme is one of {', '.join(PORTS)}")
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65536)):
        raise LoadError(f"{address!r} is not HOST or HOST:PORT, nor one with mqtts://, ws:// or wss://")
    try:
        transport = transport or "mqtt"
        return socket.gethostbyname(host), int(port or PORTS[transport]), transport, slash + path if path else "/mqtt"
    except OSError as error:
        raise LoadError(f"{host}: {error.strerror or error}") from error


def resolve_another(option: str, transport: str, address: str) -> tuple[str, int]:
    """The address and the port of another node of the cluster. Raises LoadError."""
    host, port, other, _ = resolve(address)
    if other != transport:
        raise LoadError(f"{option} needs the same transport: {transport}")
    return host, port


def pids_at(host: str, port: int) -> list[int]:
    """The processes that listen there, if it is this machine."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return []
    return listening_pids(port)


def make_parser() -> Parser:
    parser = Parser("bench", "Load an MQTT broker, check every message, measure.", "[SHAPE] [OPTION...]", EXAMPLES)
    add = parser.add_argument
    add("shape", nargs="?", default="pairs", choices=SHAPES, metavar="SHAPE", help="see below [pairs]")
    add(
        "--host",
        "--url",
        action="append",
        dest="hosts",
        metavar="HOST[:PORT]|URL",
        help="the broker; mqtts://HOST, ws://HOST/PATH or wss://HOST/PATH for TLS and WebSocket; several times: nodes"
        " of subscribers, in turn [127.0.0.1:1883]",
    )
    add("--publish-host", metavar="HOST[:PORT]|URL", help="another node, for publishers [the first --host]")
    add("--level", type=int, choices=(4, 5), default=4, help="protocol level of all clients: 5 is MQTT 5.0 [4]")
    add("-u", "--username", default="", metavar="USER", help="user name of all clients")
    add("-P", "--pw", dest="password", default="", metavar="PASSWORD", help="their password")
    add("--processes", type=_number(1), default=1, metavar="N", help="run N copies side by side, one per core [1]")
    add("--pid", type=_number(1), action="append", dest="pids", help="a process of the broker [the listening ones]")
    add("--seconds", type=_real(0.001), default=5.0, help="duration, after the warm-up [5]")
    add("--json", action="store_true", help="all figures, as one JSON object")
    add("--hdr", type=Path, metavar="FILE", help="write latencies as HdrHistogram's percentile distribution")
    add = parser.add_argument_group("clients and messages").add_argument
    add("--publishers", type=_number(1), metavar="N")
    add("--subscribers", type=_number(1), metavar="N")
    add("--qos", type=int, choices=(0, 1, 2), help="of PUBLISH and SUBSCRIBE [0]")
    add("--payload", type=_number(32), metavar="BYTES", help="of each message, at least 32 [64]")
    add("--properties", type=_number(9), metavar="BYTES", help="level 5: property block of each message [none]")
    add("--ids", action="store_true", default=None, help="level 5: subscription identifiers")
    add("--alias", choices=ALIASES[1:], help="level 5: topic aliases of publishers (in), to subscribers (out), or both")
    add("--rate", type=_real(0), help="messages or take-overs per second and process [as many as possible; 300]")
    add("--count", type=_number(1), metavar="N", help="stop after N messages in each process [no limit]")
    add("--batch", type=_number(1), metavar="N", help="messages per write [1]")
    add("--window", type=_number(1), metavar="N", help="unacknowledged messages per publisher [20]")
    add("--backlog", type=_number(0), metavar="N", help="pause at N undelivered ones [20000, less at QoS 1, 2]")
    add("--warm-up", type=_real(0), metavar="SECONDS", help="not included in the figures [0.5]")
    add("--persistent", action="store_true", default=None, help="sessions are not clean")
    add("--topics", type=_number(1), metavar="N", help="wild: in all [1000000]")
    add("--filters", type=_number(1), metavar="N", help="wild: of each subscriber [50]")
    add = parser.add_argument_group("shared").add_argument
    add("--slow", type=_number(1), metavar="N", help="so many subscribers acknowledge slowly, QoS 1 and 2 [none]")
    add("--slow-rate", type=_real(0.001), metavar="RATE", help="acknowledgements of each of them per second [10]")
    add("--dying", type=_number(1), metavar="N", help="so many others lose connections, and return at the next node")
    add("--dies-every", type=_real(0.01), metavar="SECONDS", help="time between two losses of a dying one [1]")
    add("--away", type=_real(0), metavar="SECONDS", help="until it returns; --persistent: the same session [0.1]")
    add = parser.add_argument_group("connections, connects, take-overs").add_argument
    add("--connections", type=_number(1), metavar="N", help="how many [5000]")
    add("--subscribe", action="store_true", default=None, help="connections: one subscription each")
    add("--keep-alive", type=_number(1), metavar="SECONDS", help="connections: of each [60]")
    add("--parallel", type=_number(1), metavar="N", help="connects: at a time [50]")
    add("--clients", type=_number(1), metavar="N", help="take-overs: how many [1000]")
    return parser


def _at_least(least: T, read: Callable[[str], T]) -> Callable[[str], T]:
    def number(text: str) -> T:
        value = read(text)
        if not value >= least:  # nor is "nan"
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number


def _number(least: int) -> Callable[[str], int]:
    return _at_least(least, int)


def _real(least: float) -> Callable[[str], float]:
    return _at_least(least, float)
