"""`flockmq links`: the links to other brokers, their state, and the messages that wait for them."""

import json
import time
from argparse import Namespace

from .. import logs
from ..errors import UsageError
from .http_api import add_api_options, ask, parse
from .parser import Parser

EXAMPLES = """\
  flockmq links
  flockmq links --url https://broker.example.org:8080 --token-file token --json
  flockmq links forget cloud

list (the default): all links, with the node that runs each, and what went out and came in. forget: end the session
of a link that is no longer configured; the messages that wait for it are dropped."""


def run(arguments: list[str]) -> int:
    """List links, or forget one; returns the exit status."""
    parser = Parser("links", "The links of a broker to others.", "[list | forget LINK] [OPTION...]", EXAMPLES)
    parser.add_argument("action", nargs="?", default="list", choices=("list", "forget"), help="[list]")
    parser.add_argument("link", nargs="?", metavar="LINK", help="name of the table [links.NAME]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_options(parser)
    args = parse(parser, arguments)
    if (args.link is None) != (args.action == "list"):
        raise UsageError(f"`links {args.action}` takes {'no' if args.link else 'a'} link", "the NAME of [links.NAME]")
    (show if args.action == "list" else forget)(args)
    return 0


def show(args: Namespace) -> None:
    """Print a line for each link."""
    items = ask(args, "/links")["items"]
    if args.json:
        print(json.dumps(items))
        return
    if not items:
        print("there are no links")
        return
    print(f"{'state':>10} {'for':>8} {'waiting':>8} {'out':>10} {'in':>10}  link")
    for item in items:
        seconds = max(0.0, time.time() - item["since"])
        print(
            f"{item['state']:>10} {span(seconds):>8} {item['waiting']:>8} {item['out']['messages']:>10} "
            f"{item['in']['messages']:>10}  {item['name']} to {logs.escaped(item['address'])}"
        )
        if item["reason"]:
            print(f"{'':>40}  {logs.escaped(item['reason'])}")
        if item["wanted"]:
            here, there = item["wanted"]["here"], item["wanted"]["there"]
            print(f"{'':>40}  wanted filters: {there} of the other broker, {here} of this one")
        for topic_filter in item["refused_filters"]:
            print(f"{'':>40}  not granted: {logs.escaped(topic_filter)}")


def span(seconds: float) -> str:
    """A time in the largest unit that fits."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def forget(args: Namespace) -> None:
    """End the session of a link."""
    ask(args, "/link/session", method="DELETE", name=args.link)
    print("{}" if args.json else f"the session of {args.link} has ended")
