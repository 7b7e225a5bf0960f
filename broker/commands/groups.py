"""`flockmq groups`: the shared subscriptions, their subscribers, the messages that wait; and groups that are
declared."""

import json
from argparse import Namespace
from typing import Any

from .. import logs
from ..config.declared_group import OPTIONS, declared
from ..config.kinds import Boolean
from ..errors import UsageError
from .http_api import PAGE, add_api_options, ask, ask_all, parse, print_failures
from .parser import Parser
from .settings import metavar

EXAMPLES = """\
  flockmq groups
  flockmq groups show '$share/workers/jobs/#' --url https://broker.example.org:8080 --token-file token
  flockmq groups purge '$share/workers/jobs/#'
  flockmq groups add '$share/workers/jobs/#' --max-queued-messages 1000000 --when-full drop-new --expiry 1h
  flockmq groups remove '$share/workers/jobs/#'

list (the default): all groups. show: one, with its subscribers and its oldest messages. purge: drop the messages
that wait; subscribers keep those that they have. add: declare a group, which exists without subscribers, or replace
the settings of one; settings that are not given are those of [shared] in the configuration (DURATION such as 1h,
SIZE such as 64 MiB). remove: declare it no more; without subscribers it ends, and the messages that wait are
dropped. drain: subscribers of a declared group get no new messages, and finish theirs. resume: they get messages
again."""


def run(arguments: list[str]) -> int:
    """List, show, purge, declare or remove groups; returns the exit status."""
    parser = Parser(
        "groups",
        "The shared subscriptions of a broker.",
        "[list | (show | purge | add | remove | drain | resume) GROUP] [OPTION...]",
        EXAMPLES,
    )
    actions = {
        "list": list_all,
        "show": show,
        "purge": purge,
        "add": add,
        "remove": remove,
        "drain": drain,
        "resume": drain,
    }
    parser.add_argument("action", nargs="?", default="list", choices=tuple(actions), help="[list]")
    parser.add_argument("group", nargs="?", metavar="GROUP", help="$share/NAME/FILTER")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_options(parser)
    settings = parser.add_argument_group("settings of `add`")
    for name, (kind, description) in OPTIONS.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(kind, Boolean):
            settings.add_argument(flag, action="store_const", const="true", help=description)
        else:
            settings.add_argument(flag, metavar=metavar(kind), help=description)
    args = parse(parser, arguments)
    if (args.group is None) != (args.action == "list"):
        raise UsageError(f"`groups {args.action}` takes {'no' if args.group else 'a'} group", "$share/NAME/FILTER")
    given = [name for name in OPTIONS if getattr(args, name) is not None]
    if given and args.action != "add":
        raise UsageError(f"--{given[0].replace('_', '-')} is of `groups add`")
    actions[args.action](args)
    return 0


def list_all(args: Namespace) -> None:
    """Print a line for each group."""
    items = ask_all(args, "/groups")
    if args.json:
        print(json.dumps(items))
        return
    if not items:
        print("there are no shared subscriptions")
        return
    print(f"{'connected':>9} {'subscribers':>11} {'waiting':>9} {'unacknowledged':>14} {'given':>10}  group")
    for item in items:
        print(
            f"{item['connected']:>9} {item['subscribers']:>11} {item['waiting']:>9} {item['unacknowledged']:>14} "
            f"{item['given']:>10}  {logs.escaped(item['group'])}{state_of(item)}"
        )


def state_of(group: dict[str, Any]) -> str:
    """Whether a group is declared, and paused, behind its name."""
    if not group["declared"]:
        return ""
    return " (declared, paused)" if group["settings"]["paused"] else " (declared)"


def show(args: Namespace) -> None:
    """Print one group."""
    found = ask(args, "/group", group=args.group, limit=PAGE)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{logs.escaped(found['group'])}: {found['waiting']} messages wait ({found['waiting_bytes']} bytes)")
    if found["declared"]:
        print(f"  declared with {settings_of(found, own=True) or 'no settings'}")
        print(f"  from [shared]: {settings_of(found, own=False)}")
    for subscriber in found["sessions"]:
        state = f"connected to {logs.escaped(subscriber['node'])}" if subscriber["connected"] else "away"
        kind = "persistent" if subscriber["persistent"] else "clean"
        print(
            f"  {logs.escaped(subscriber['client_id'])}: {state}, {kind}, QoS {subscriber['qos']}, "
            f"{subscriber['unacknowledged']} unacknowledged"
        )
    print_failures(found["failures"])
    for message in found["oldest"]:
        print(f"  {message['place']}: {logs.escaped(message['topic'])}, {message['bytes']} bytes")


def settings_of(group: dict[str, Any], *, own: bool) -> str:
    """The settings that a declared group has by its declaration, or those that it has from the configuration."""
    return ", ".join(
        f"{name} {logs.escaped(json.dumps(value))}"
        for name, value in group["settings"].items()
        if (name in group["own"]) == own and value != ""
    )


def purge(args: Namespace) -> None:
    """Drop the messages that wait."""
    dropped = ask(args, "/group/messages", method="DELETE", group=args.group)["dropped"]
    print(json.dumps({"dropped": dropped}) if args.json else f"messages dropped: {dropped}")


def add(args: Namespace) -> None:
    """Declare a group."""
    given = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    try:
        group = declared(args.group, given, is_text=True)
    except ValueError as fault:
        raise UsageError(f"expected {fault}") from None
    ask(args, "/group", dict(group.options), method="PUT", group=group.name)
    print(json.dumps(dict(group.options)) if args.json else f"{logs.escaped(group.name)} is declared")


def drain(args: Namespace) -> None:
    """Let subscribers get no new messages; or, for `resume`, let them get some again."""
    body = {"paused": args.action == "drain"}
    ask(args, "/group/paused", body, method="PUT", group=args.group)
    print(json.dumps(body) if args.json else "paused" if body["paused"] else "resumed")


def remove(args: Namespace) -> None:
    """Declare a group no more."""
    dropped = ask(args, "/group", method="DELETE", group=args.group)["dropped"]
    print(json.dumps({"dropped": dropped}) if args.json else f"removed; messages dropped: {dropped}")
