"""`flockmq limits`: the limits of a broker, and how full they are."""

import json
from argparse import Namespace
from typing import Any

from .. import logs
from .drain import find
from .http_api import add_api_options, ask, failure_lines, parse
from .output import size, table
from .parser import Parser

EXAMPLES = """\
  flockmq limits
  flockmq limits --node node-2 --explain
  flockmq limits --json --url https://broker.example.org:8080 --token-file token

The limits in the order of how full they are: the configuration key, what is used of it, and by whom. A limit of
each session, group, tenant and so on shows the fullest one. In a cluster each limit is shown at the node where
it is fullest. Limits that are at least 80 % full are explained: what happens when they are reached, and how to
change them."""
ALMOST_FULL = 0.8
HEAD = ("full", "      used", "     limit", "", "name", "fullest", "node")


def run(arguments: list[str]) -> int:
    """Print the limits; returns the exit status."""
    parser = Parser("limits", "The limits of a broker, and how full they are.", "[OPTION...]", EXAMPLES)
    parser.add_argument("--node", metavar="NODE", help="only the limits of this node; name or id")
    parser.add_argument("--explain", action="store_true", help="explain all limits")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_options(parser)
    args = parse(parser, arguments)
    found = ask(args, "/limits", node=find(args, args.node) if args.node else "")
    if args.json:
        print(json.dumps(found["items"]))
    else:
        show(args, found)
    return 0


def show(args: Namespace, found: dict[str, Any]) -> None:
    """Print a line for each limit, and explanations below some."""
    items = found["items"]
    head, *lines = table([HEAD, *map(cells, items)]).splitlines()
    print(head)
    for item, line in zip(items, lines, strict=True):
        print(line)
        if args.explain or (item["full"] or 0) >= ALMOST_FULL:
            print(f"      {item['when_reached']}\n      {item['change']}")
    for line in failure_lines(found["failures"]):
        print(line)


def cells(item: dict[str, Any]) -> tuple[object, ...]:
    """The line of a limit."""
    full = f"{item['full']:.0%}" if item["full"] is not None else "-"
    whose = f"{item['scope']} {logs.escaped(item['whose'])}" if item["whose"] else ""
    used, limit = (amount(item[name], item["unit"]) for name in ("used", "limit"))
    return full.rjust(4), used, limit, item["unit"], item["name"], whose, item["node"]


def amount(number: int | None, unit: str) -> str:
    """A figure for people, to the right."""
    if number is None:
        return "-".rjust(10)
    return (size(number) if unit == "bytes" else str(number)).rjust(10)
