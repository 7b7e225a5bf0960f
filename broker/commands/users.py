"""`flockmq users`: the users in the store of a broker: their passwords, rules and roles."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from .. import logs
from ..auth.credentials import ROLE_NAMES, USER_NAMES
from ..errors import UsageError
from . import access_files
from .http_api import NotThere, add_api_options, ask, parse
from .parser import Parser
from .passwd import add_scram_options, ask_credentials, warn
from .stored_access import Item, Stored

AT_ONCE = 100  # users in one request
MOST_RULES = 2000  # likewise
SHOWN = 10  # names in a message

EXAMPLES = """\
  flockmq users add pump-17                          # asks for the password, or reads a line of standard input
  flockmq users add pump-18 'topic read orders/#' --role pump
  flockmq users set-rules pump-17 'pattern write devices/%c/#' 'topic read orders/#'
  flockmq users set-rules pump-17                    # may do nothing but by roles; `unrestrict` ends that
  flockmq users set-roles pump-17 --role pump --role reader
  flockmq users set-password pump-17 --scram         # may be proven by SCRAM-SHA-256, too
  flockmq users disable pump-17                      # closes its clients; `enable` lets them in again
  flockmq users remove pump-17
  flockmq users may pump-17 publish devices/7        # whether it may, and by which rule
  flockmq users may c-42 subscribe 'orders/#' --client   # of a connected client, by its client id
  flockmq users import /etc/mosquitto/passwd         # or an ACL file, or Mosquitto's dynamic-security.json
  flockmq users list --search pump- --json

Nodes accept these users with auth.users = true. A change takes effect at once at all nodes."""


def run(arguments: list[str]) -> int:
    """List, show or change users; returns the exit status."""
    parser = Parser(
        "users", "The users of a broker, in its store.", "[list | ACTION NAME [RULE...]] [OPTION...]", EXAMPLES
    )
    USERS.add_options(parser, tuple(ACTIONS))
    parser.add_argument(
        "--role", action="append", metavar="ROLE", help="for `add` and `set-roles`; more than one may be given"
    )
    parser.add_argument("--replace", action="store_true", help="for `import`: change users and roles that exist")
    parser.add_argument("--client", action="store_true", help="for `may`: NAME is the client id of a connected client")
    add_scram_options(parser.add_argument_group("for `add` and `set-password`"))
    add_api_options(parser.add_argument_group("node"))
    args = parse(parser, arguments)
    USERS.check(args, OPTIONS)
    for role in args.role or ():
        if not ROLE_NAMES.has(role):
            raise UsageError(f"{role!r} can't be a role's name", f"expected {ROLE_NAMES.expected}")
    ACTIONS[args.action](args)
    return 0


def add(args: Namespace) -> None:
    """Add a user."""
    stored = ask_credentials(args.name, args).text
    USERS.add(args, hash=stored, rules=args.rules or None, roles=args.role or [])


def set_password(args: Namespace) -> None:
    """Change the password."""
    USERS.change(args, hash=ask_credentials(args.name, args).text)


def may(args: Namespace) -> None:
    """Print whether clients of a user may do something, and by which rule."""
    if len(args.rules) != 2 or args.rules[0] not in RIGHTS:
        raise UsageError("`may` takes NAME, then one of publish, subscribe and read, then a topic")
    action, topic = args.rules
    query = {"client_id" if args.client else "username": args.name, "action": action, "topic": topic}
    found = ask(args, "/rules/check", **query)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{'yes' if found['allowed'] else 'no'}: {logs.escaped(found['reason'])}")
    if found["source"] is not None:
        source = found["source"]
        where = f"line {source['line']} of {source['name']}" if source["line"] else f"{source['kind']} {source['name']}"
        print(f"  {logs.escaped(found['rule'])}\n  {logs.escaped(where)}")


def import_file(args: Namespace) -> None:
    """Import a file."""
    found = access_files.read(args.name, warn)
    total: dict[str, Any] = {"roles": Counter(), "users": Counter()}
    existing: dict[str, list[str]] = {"roles": [], "users": []}
    for kind, items in (("roles", found.roles), ("users", found.users)):
        for batch in _batches(items):
            reply = ask(args, f"/{kind}/import", {kind: batch, "replace": args.replace})
            existing[kind] += reply.pop("existing")
            total[kind].update(reply)
    for name, rules in found.rules.items():
        try:
            ask(args, "/user", {"rules": rules}, method="PATCH", name=name)
            total["users"]["changed"] += 1
        except NotThere:
            warn(f"user {name!r}", "does not exist: `flockmq users add` makes it, then import this file again")
    if args.json:
        print(json.dumps({**total, "existing": existing}))
        return
    for kind, numbers in total.items():
        print(f"{kind}: {numbers['created']} created, {numbers['changed']} changed, {numbers['equal']} as they were")
        if existing[kind]:
            shown = ", ".join(map(logs.escaped, existing[kind][:SHOWN]))
            more = f" and {len(existing[kind]) - SHOWN} more" if len(existing[kind]) > SHOWN else ""
            print(f"  these exist, and stay as they are (--replace changes them): {shown}{more}")


def _batches(items: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The items in parts that the API takes."""
    batch: list[dict[str, Any]] = []
    rules = 0
    for item in items:
        more = len(item.get("rules") or ())
        if batch and (len(batch) == AT_ONCE or rules + more > MOST_RULES):
            yield batch
            batch, rules = [], 0
        batch.append(item)
        rules += more
    if batch:
        yield batch


def words(user: Item) -> str:
    """The rights of a user, in words."""
    parts = [f"role {logs.escaped(role)}" for role in user["roles"]]
    parts += [logs.escaped(rule) for rule in user["rules"] or ()]
    if user["rules"] is None and not user["roles"]:
        parts = ["everything that general rules allow"]
    found = "; ".join(parts) or "nothing"
    return f"disabled; {found}" if user["disabled"] else found


USERS = Stored("user", USER_NAMES, words)
ACTIONS: dict[str, Callable[[Namespace], object]] = {
    "list": USERS.list_all,
    "show": USERS.show,
    "add": add,
    "set-password": set_password,
    "set-rules": lambda args: USERS.change(args, rules=args.rules),
    "set-roles": lambda args: USERS.change(args, roles=args.role or []),
    "unrestrict": lambda args: USERS.change(args, rules=None),
    "enable": lambda args: USERS.change(args, disabled=False),
    "disable": lambda args: USERS.change(args, disabled=True),
    "remove": USERS.remove,
    "may": may,
    "import": import_file,
}
OPTIONS = {  # the actions that an option is for
    "role": ("add", "set-roles"),
    "replace": ("import",),
    "client": ("may",),
    "scram": ("add", "set-password"),
    "rounds": ("add", "set-password"),
}
RIGHTS = ("publish", "subscribe", "read")
