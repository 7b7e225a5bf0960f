"""`python -m loadtest.run SHAPE --port PORT ...`: one run of the generator, figures as text or JSON.

Exit status: 0 good; 1 could not run; 2 something lost (QoS 1 and 2), duplicated, reordered, misrouted or disconnected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from loadtest.load import SHAPES, LoadError, connect_load, find_faults, hold_connections, publish_load, take_over_load
from loadtest.process import Figures


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says; return the exit status."""
    options = vars(_parser().parse_args(arguments))
    mode, as_json = options.pop("mode"), options.pop("json")
    try:
        figures = _MODES[mode](**options) if mode in _MODES else publish_load(mode, **options)
    except (LoadError, ValueError, ProcessLookupError) as error:
        print(f"loadtest.run: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures) if as_json else describe(figures))
    faults = [fault for fault in find_faults(figures) if figures.get("qos") or not fault.startswith("lost")]
    if faults:
        print("FAULTS: " + "; ".join(faults), file=sys.stderr)
    return 2 if faults else 0


def describe(figures: Figures) -> str:
    """Return the figures as lines of name and value."""
    width = max(len(name) for name in figures)
    return "\n".join(f"{name:<{width}}  {_number(value)}" for name, value in figures.items() if value != "")


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


_MODES: dict[str, Callable[..., Figures]] = {
    "connections": hold_connections,
    "connects": connect_load,
    "take-overs": take_over_load,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.run", description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True, metavar="|".join((*SHAPES, *_MODES)))
    for shape in SHAPES:
        _add_publish(modes.add_parser(shape, help="publish in this shape"), shape)
    idle = modes.add_parser("connections", help="open idle connections and hold them")
    _add_common(idle)
    idle.add_argument("--connections", type=int, default=5000, metavar="N")
    idle.add_argument("--subscribe", action="store_true", help="one subscription each")
    idle.add_argument("--seconds", type=float, default=5.0, help="how long to hold them")
    idle.add_argument("--keep-alive", type=int, default=60, metavar="S", help="pings come a little oftener")
    idle.add_argument("--parallel", type=int, default=100, help="handshakes at once")
    cycle = modes.add_parser("connects", help="connect and disconnect, over and over")
    _add_common(cycle)
    cycle.add_argument("--parallel", type=int, default=50, help="clients at once")
    cycle.add_argument("--seconds", type=float, default=3.0)
    cycle.add_argument("--persistent", action="store_true", help="sessions that are not clean")
    hop = modes.add_parser("take-overs", help="connect clients that are connected, at two nodes in turn")
    _add_common(hop)
    _add_second_port(hop)
    hop.add_argument("--clients", type=int, default=1000)
    hop.add_argument("--rate", type=float, default=300.0, help="take-overs per second in all; 0: as many as possible")
    hop.add_argument("--seconds", type=float, default=3.0)
    hop.add_argument("--persistent", action="store_true", help="sessions that are not clean, a subscription each")
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="in 127.0.0.0/8")
    parser.add_argument("--pid", type=int, action="append", default=[], dest="pids", help="a process of the broker")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _add_second_port(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--publish-port", type=int, default=0, metavar="PORT", help="another node, for publishers")


def _add_publish(parser: argparse.ArgumentParser, shape: str) -> None:
    _add_common(parser)
    _add_second_port(parser)
    publishers, subscribers = {"pairs": (10, 10), "fanout": (1, 1000), "fanin": (100, 1), "wild": (10, 100)}[shape]
    parser.add_argument("--publishers", type=int, default=publishers)
    parser.add_argument("--subscribers", type=int, default=subscribers)
    if shape == "wild":
        parser.add_argument("--topics", type=int, default=1_000_000)
        parser.add_argument("--filters", type=int, default=50, help="of each subscriber")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("--payload", type=int, default=64, metavar="BYTES")
    parser.add_argument("--batch", type=int, default=1, help="messages per write")
    parser.add_argument("--window", type=int, default=20, help="unacknowledged messages per publisher")
    parser.add_argument("--backlog", type=int, default=20_000, help="pause while so many deliveries are outstanding")
    parser.add_argument("--rate", type=float, default=0.0, help="messages per second in all; for latencies")
    parser.add_argument("--count", type=int, default=0, help="stop after so many messages in all")
    parser.add_argument("--seconds", type=float, default=3.0, help="of publishing at most")
    parser.add_argument("--warm-up", type=float, default=0.5, metavar="SECONDS")
    parser.add_argument("--persistent", action="store_true", help="sessions that are not clean")


if __name__ == "__main__":
    sys.exit(main())
