"""`flockmq prove`: kills, stops and cuts off a broker under load, and judges what its clients saw.

Exit status: 0 without findings; 1 it could not run; 2 the command line is wrong; 3 a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import randrange

from ..prove.node import Node, ProveError
from ..prove.presets import PRESETS
from ..prove.report import as_html, as_json, as_text
from ..prove.run import FAULTS, Plan, prove
from .parser import Parser

FOUND = 3
EXAMPLES = """\
brokers that it starts by itself:
  flockmq, flockmq-cluster (three nodes over a Redis of their own), mosquitto

faults:
  kill    kill -9, and a start a moment later
  pause   the process stands still (SIGSTOP) for up to 1.5 s
  cut     all connections of a node end with RST
  stall   the network of a node lets nothing through for up to 1.5 s

examples:
  flockmq prove                                         one node of FlockMQ
  flockmq prove mosquitto --seconds 60 --report out     Mosquitto, with a report in out/
  flockmq prove --start 'nanomq start' --address 127.0.0.1:1883 --faults kill,cut
  flockmq prove --start 'docker compose up -d emqx' --kill 'docker compose kill emqx' --address 127.0.0.1:1883
  flockmq prove --start './one.sh' --address 127.0.0.1:1883 --start './other.sh' --address 127.0.0.1:1884
                                                        a cluster: clients connect to any node

The broker must accept clients without a password, keep sessions and messages on its disk, and have no
limit of queues below 1000 messages. Start it with fresh state.
"""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if len(options.start) != len(options.address):
        parser.error("each --start needs its --address")
    if options.kill and len(options.kill) != len(options.start):
        parser.error("either each --start has its --kill, or none")
    if options.broker and options.start:
        parser.error("a broker by name, or --start, not both")
    plan = Plan(
        options.seconds, options.seed or randrange(1, 1 << 32), options.faults, options.levels, not options.no_shared
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-")))
        try:
            nodes = _nodes(options, folder, stack)
            proof = prove(nodes, plan, _note if sys.stderr.isatty() and not options.json else _ignore)
        except ProveError as error:
            print(f"flockmq prove: {error}", file=sys.stderr)
            return 1
        commands = [node.command for node in nodes]
        print(as_json(proof, commands) if options.json else as_text(proof))
        if options.report is not None:
            options.report.mkdir(parents=True, exist_ok=True)
            (options.report / "report.json").write_text(as_json(proof, commands))
            (options.report / "report.html").write_text(as_html(proof, commands))
            for node in nodes:
                (options.report / f"{node.name}.log").write_bytes(node.output.read_bytes())
    return FOUND if proof.findings else 0


def _nodes(options: argparse.Namespace, folder: Path, stack: ExitStack) -> list[Node]:
    if not options.start:
        return PRESETS[options.broker or "flockmq"](folder, stack)
    kills = options.kill or [""] * len(options.start)
    return [
        Node(f"node {number}", command, address, folder / f"node {number}.log", kill)
        for number, (command, address, kill) in enumerate(zip(options.start, options.address, kills, strict=True), 1)
    ]


def _note(text: str) -> None:
    print(f"\r{text:60}", end="", file=sys.stderr, flush=True)


def _ignore(text: str) -> None:
    """The output is no terminal."""


def _parser() -> Parser:
    parser = Parser(
        "prove",
        "Kill, stop and cut off a broker under load, and judge what its clients saw:\n"
        "lost and doubled messages, order, retained messages, wills, sessions.",
        "[BROKER | --start CMD --address HOST:PORT ...] [OPTION...]",
        EXAMPLES,
    )
    add = parser.add_argument
    add(
        "broker", nargs="?", choices=sorted(PRESETS), metavar="BROKER", help="one that it can start by itself [flockmq]"
    )
    add(
        "--start",
        action="append",
        default=[],
        metavar="CMD",
        help="starts a node, in the foreground; several times: a cluster",
    )
    add(
        "--address",
        action="append",
        default=[],
        type=_address,
        metavar="HOST:PORT",
        help="of the node of the --start before",
    )
    add(
        "--kill",
        action="append",
        default=[],
        metavar="CMD",
        help="kills a node that --start has left in the background",
    )
    add("--seconds", type=float, default=30.0, help="duration of the load [30]")
    add("--seed", type=int, default=0, metavar="N", help="repeat the clients' actions and the faults [random]")
    add("--faults", type=_faults, default=FAULTS, metavar="KIND,...", help=f"of {', '.join(FAULTS)}, or none [all]")
    add("--levels", type=_levels, default=(4, 5), metavar="4,5", help="protocol levels of the clients [4,5]")
    add("--no-shared", action="store_true", help="no shared subscriptions: the broker has none")
    add("--report", type=Path, metavar="FOLDER", help="write report.html, report.json and the nodes' logs")
    add("--json", action="store_true", help="print the report as JSON")
    return parser


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _faults(text: str) -> tuple[str, ...]:
    kinds = tuple(filter(None, text.split(","))) if text != "none" else ()
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(FAULTS)}, none")
    return kinds


def _levels(text: str) -> tuple[int, ...]:
    if text not in ("4", "5", "4,5", "5,4"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of 4, 5, 4,5")
    return tuple(map(int, text.split(",")))
