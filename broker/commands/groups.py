"""`flockmq groups`: the shared subscriptions, their members, and the messages that wait."""

import json
from argparse import Namespace
from typing import Any
from urllib.parse import urlencode

from broker import logs
from broker.commands.http_api import add_api_options, check_url, response
from broker.commands.parser import Parser
from broker.errors import UsageError

SECONDS = 30.0  # for a response
PAGE = 1000
EXAMPLES = """\
  flockmq groups
  flockmq groups show '$share/workers/jobs/#' --url https://broker.example.org:8080 --token-file token
  flockmq groups purge '$share/workers/jobs/#'

list (the default): all groups. show: one, with its members and its oldest messages. purge: drop the messages that
wait; members keep those that they have."""


def run(arguments: list[str]) -> int:
    """List, show or purge groups; returns the exit status."""
    parser = Parser(
        "groups", "The shared subscriptions of a broker.", "[list | show GROUP | purge GROUP] [OPTION...]", EXAMPLES
    )
    parser.add_argument("action", nargs="?", default="list", choices=("list", "show", "purge"), help="[list]")
    parser.add_argument("group", nargs="?", metavar="GROUP", help="$share/NAME/FILTER")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_options(parser)
    parser.add_general_help(parser.add_argument_group("general"))
    args = parser.parse(arguments)
    check_url(args)
    if (args.group is None) != (args.action == "list"):
        raise UsageError(f"`groups {args.action}` takes {'no' if args.group else 'a'} group", "$share/NAME/FILTER")
    {"list": list_all, "show": show, "purge": purge}[args.action](args)
    return 0


def list_all(args: Namespace) -> None:
    """Print a line for each group."""
    items: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = ask(args, "/groups", after=after, limit=PAGE)
        items += page["items"]
        after = page["next"]
    if args.json:
        print(json.dumps(items))
        return
    if not items:
        print("there are no shared subscriptions")
        return
    print(f"{'connected':>9} {'members':>7} {'waiting':>9} {'unacknowledged':>14} {'given':>10}  group")
    for item in items:
        print(
            f"{item['connected']:>9} {item['members']:>7} {item['waiting']:>9} {item['unacknowledged']:>14} "
            f"{item['given']:>10}  {logs.escaped(item['group'])}"
        )


def show(args: Namespace) -> None:
    """Print one group."""
    found = ask(args, "/group", group=args.group, limit=PAGE)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{logs.escaped(found['group'])}: {found['waiting']} messages wait ({found['waiting_bytes']} bytes)")
    for member in found["of"]:
        state = "connected" if member["connected"] else "away"
        kind = "persistent" if member["persistent"] else "clean"
        print(
            f"  {logs.escaped(member['client_id'])}: {state}, {kind}, QoS {member['qos']}, "
            f"{member['unacknowledged']} unacknowledged"
        )
    for message in found["oldest"]:
        print(f"  {message['place']}: {logs.escaped(message['topic'])}, {message['bytes']} bytes")


def purge(args: Namespace) -> None:
    """Drop the messages that wait."""
    with response(
        args, f"/group/messages?{urlencode({'group': args.group})}", method="DELETE", timeout=SECONDS
    ) as found:
        dropped = json.load(found)["dropped"]
    print(json.dumps({"dropped": dropped}) if args.json else f"{dropped} messages dropped")


def ask(args: Namespace, path: str, **query: object) -> Any:
    """The JSON of a response. Raises FlockError."""
    with response(args, f"{path}?{urlencode(query)}", timeout=SECONDS) as found:
        return json.load(found)
