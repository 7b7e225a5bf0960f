"""`flockmq delayed`: the delayed messages that wait, and their end; and transactions that wait for their commit."""

import json
from argparse import Namespace

from .. import logs
from ..errors import UsageError
from .http_api import PAGE, add_api_options, ask, ask_all, parse
from .parser import Parser

EXAMPLES = """\
  flockmq delayed
  flockmq delayed list --json --url https://broker.example.org:8080 --token-file token
  flockmq delayed cancel 0000000000000042
  flockmq delayed transactions

list (the default): the messages to $delayed/SECONDS/TOPIC that wait, in the order in which they are due. cancel:
drop one of them, by its id; it is not published. transactions: the parts of transactions that wait for their
commit, the first to be dropped at the front."""


def run(arguments: list[str]) -> int:
    """List or cancel delayed messages; returns the exit status."""
    parser = Parser(
        "delayed",
        "The delayed messages of a broker.",
        "[list | cancel ID | transactions] [OPTION...]",
        EXAMPLES,
    )
    parser.add_argument("action", nargs="?", default="list", choices=tuple(ACTIONS), help="[list]")
    parser.add_argument("id", nargs="?", metavar="ID", help="of a message, as `list` prints it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_options(parser)
    args = parse(parser, arguments)
    if (args.id is None) == (args.action == "cancel"):
        raise UsageError(f"`delayed {args.action}` takes {'no' if args.id else 'an'} id", "`flockmq delayed` has them")
    ACTIONS[args.action](args)
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


def transactions(args: Namespace) -> None:
    """Print a line for each part that waits."""
    items = ask(args, "/transactions", limit=PAGE)["items"]
    if args.json:
        print(json.dumps(items))
        return
    if not items:
        print("no transaction waits for its commit")
        return
    print(f"{'dropped in':>12} {'chunks':>7} {'bytes':>10}  name, number, part, user")
    for item in items:
        names = (item["name"], item["number"], item["part"], item["tenant"], item["user"])
        print(
            f"{item['expires_in']:>10.0f} s {item['chunks']:>7} {item['bytes']:>10}  "
            f"{' '.join(logs.escaped(str(name)) for name in names if name != '')}"
        )


ACTIONS = {"list": list_all, "cancel": cancel, "transactions": transactions}
