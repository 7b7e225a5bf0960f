"""`flockmq delayed`: the delayed messages that wait, and their end."""

import json
from argparse import Namespace

from .. import logs
from ..errors import UsageError
from .http_api import add_api_options, ask, ask_all, parse
from .parser import Parser

EXAMPLES = """\
  flockmq delayed
  flockmq delayed list --json --url https://broker.example.org:8080 --token-file token
  flockmq delayed cancel 0000000000000042

list (the default): the messages to $delayed/SECONDS/TOPIC that wait, in the order in which they are due. cancel:
drop one of them, by its id; it is not published."""


def run(arguments: list[str]) -> int:
    """List or cancel delayed messages; returns the exit status."""
    parser = Parser(
        "delayed",
        "The delayed messages of a broker.",
        "[list | cancel ID] [OPTION...]",
        EXAMPLES,
    )
    parser.add_argument("action", nargs="?", default="list", choices=("list", "cancel"), help="[list]")
    parser.add_argument("id", nargs="?", metavar="ID", help="of a message, as `list` prints it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_options(parser)
    args = parse(parser, arguments)
    if (args.id is None) != (args.action == "list"):
        raise UsageError(f"`delayed {args.action}` takes {'no' if args.id else 'an'} id", "`flockmq delayed` has them")
    (list_all if args.action == "list" else cancel)(args)
    return 0


def list_all(args: Namespace) -> None:
    """Print a line for each message."""
    items = ask_all(args, "/delayed")
    if args.json:
        print(json.dumps(items))
        return
    if not items:
        print("no messages wait")
        return
    print(f"{'id':<20} {'due in':>11} {'bytes':>9} QoS  topic")
    for item in items:
        by = f" from {logs.escaped(item['client_id'])}" if item["client_id"] else ""
        print(
            f"{item['id']:<20} {item['due_in']:>9.1f} s {item['bytes']:>9} {item['qos']:>3}  "
            f"{logs.escaped(item['topic'])}{by}"
        )


def cancel(args: Namespace) -> None:
    """Drop a message."""
    ask(args, "/delayed", method="DELETE", id=args.id)
    print(json.dumps({"cancelled": args.id}) if args.json else "cancelled")
