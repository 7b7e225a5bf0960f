"""`flockmq clients`: the connected clients and the sessions of a broker: list, show, disconnect, end."""

import json
from argparse import Namespace
from typing import Any

from .. import logs
from ..errors import UsageError
from .http_api import add_api_options, ask, ask_all, parse, print_failures
from .output import size, table
from .parser import Parser

EXAMPLES = """\
  flockmq clients
  flockmq clients --search pump- --url https://broker.example.org:8080 --token-file token
  flockmq clients --sessions --json
  flockmq clients show pump-17
  flockmq clients kick pump-17       # ends its connection; it may come back
  flockmq clients end pump-17        # ends its connection and its session: subscriptions and queue

list (the default): the connected clients; with --sessions also the sessions whose clients are away. In a cluster
any node replies for all nodes."""
HEAD = ("client id", "connected", "address", "user", "subscriptions", "queued", "size")
FIELDS = ("client_id", "username", "address")


def run(arguments: list[str]) -> int:
    """List, show, disconnect or end; returns the exit status."""
    parser = Parser(
        "clients",
        "The clients and sessions of a broker.",
        "[list | (show | kick | end) CLIENT_ID] [OPTION...]",
        EXAMPLES,
    )
    actions = {"list": list_all, "show": show, "kick": kick, "end": end}
    parser.add_argument("action", nargs="?", default="list", choices=tuple(actions), help="[list]")
    parser.add_argument("client_id", nargs="?", metavar="CLIENT_ID", help="of a client, or of a session")
    parser.add_argument(
        "--sessions", action="store_true", help="list sessions, whether their clients are connected or not"
    )
    parser.add_argument("--search", metavar="TEXT", default="", help="list those that have it in a field")
    parser.add_argument("--by", choices=FIELDS, default=FIELDS[0], help=f"the field [{FIELDS[0]}]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_options(parser)
    args = parse(parser, arguments)
    if (args.client_id is None) != (args.action == "list"):
        raise UsageError(
            f"`clients {args.action}` takes {'no' if args.client_id else 'a'} client id",
            "`flockmq clients --sessions` has them",
        )
    actions[args.action](args)
    return 0


def list_all(args: Namespace) -> None:
    """Print a line for each client or session."""
    items = ask_all(args, "/sessions" if args.sessions else "/clients", search=args.search, by=args.by)
    if args.json:
        print(json.dumps(items))
    elif items:
        print(table([HEAD, *map(row, items)]))
    else:
        print(f"there are no {'sessions' if args.sessions else 'connected clients'}{' like it' if args.search else ''}")


def row(item: dict[str, Any]) -> tuple[object, ...]:
    """The line of a session."""
    return (
        logs.escaped(item["client_id"]),
        item["protocol"] if item["connected"] else "no",
        item["address"],
        logs.escaped(item["username"]),
        item["subscriptions"],
        item["queued_messages"],
        size(item["queued_bytes"]),
    )


def show(args: Namespace) -> None:
    """Print one session with its subscriptions."""
    found = ask(args, "/client", client_id=args.client_id)
    if args.json:
        print(json.dumps(found))
        return
    is_connected = found["connected"]
    rows = [
        ("client id", logs.escaped(found["client_id"])),
        ("connected", f"from {found['address']}, {found['protocol']}" if is_connected else "no"),
        ("node", logs.escaped(found["node"]) or "none"),
        ("user", logs.escaped(found["username"]) or "none"),
        ("session", lifetime(found)),
        ("queue", f"{found['queued_messages']} messages, {size(found['queued_bytes'])}"),
        ("subscriptions", str(len(found["filters"]))),
    ]
    print(table(rows))
    for subscription in found["filters"]:
        print(f"  {logs.escaped(subscription['filter'])}  QoS {subscription['qos']}")
    print_failures(found["failures"])


def lifetime(session: dict[str, Any]) -> str:
    """How long a session lives, in words."""
    if not session["persistent"]:
        return "it ends with its connection"
    if session["expires_in"] is not None:
        return f"persistent; it ends in {session['expires_in']} s"
    return "persistent"


def kick(args: Namespace) -> None:
    """End a connection."""
    ask(args, "/client/connection", method="DELETE", client_id=args.client_id)
    print(json.dumps({"disconnected": args.client_id}) if args.json else "disconnected")


def end(args: Namespace) -> None:
    """End a session."""
    ask(args, "/session", method="DELETE", client_id=args.client_id)
    print(json.dumps({"ended": args.client_id}) if args.json else "ended")
