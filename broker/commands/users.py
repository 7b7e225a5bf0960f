"""`flockmq users`: the users in the store of a broker: their passwords, rules and roles."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from .. import logs
from ..auth.credentials import NAMES, is_name
from ..auth.rules import parse_rule
from ..errors import UsageError
from . import access_files
from .http_api import NotThere, add_api_options, ask, ask_all, parse
from .output import table
from .parser import Parser
from .passwd import add_scram_options, ask_credentials, warn

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
    parser.add_argument("action", nargs="?", default="list", choices=tuple(ACTIONS), metavar="ACTION", help=WORDS)
    parser.add_argument("name", metavar="NAME", nargs="?", help="of a user; for `import` that of a file")
    rules = "for `add` and `set-rules`: as a line of an ACL file"
    parser.add_argument("rules", metavar="RULE", nargs="*", default=[], help=rules)
    parser.add_argument(
        "--role", action="append", metavar="ROLE", help="for `add` and `set-roles`; more than one may be given"
    )
    parser.add_argument("--replace", action="store_true", help="for `import`: change users and roles that exist")
    parser.add_argument("--client", action="store_true", help="for `may`: NAME is the client id of a connected client")
    parser.add_argument("--search", metavar="TEXT", default="", help="list those whose names begin so")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_scram_options(parser.add_argument_group("for `add` and `set-password`"))
    add_api_options(parser.add_argument_group("node"))
    args = parse(parser, arguments)
    check_name(args, "user")
    if args.action != "may":
        check_rules(args, ("add", "set-rules"))
    if args.role is not None and args.action not in ("add", "set-roles"):
        raise UsageError(f"--role is not of `{args.action}`", "`flockmq users --help` explains")
    ACTIONS[args.action](args)
    return 0


def check_name(args: Namespace, kind: str) -> None:
    """Raises UsageError: the name is missing, one too many, or invalid."""
    if (args.name is None) != (args.action == "list"):
        raise UsageError(
            f"`{args.action}` takes {'no' if args.name else 'a'} name", f"`flockmq {kind}s --help` explains"
        )
    if args.name is not None and args.action != "import" and not is_name(args.name):
        raise UsageError(f"{args.name!r} can't be a {kind}'s name", NAMES)


def check_rules(args: Namespace, actions: tuple[str, ...]) -> None:
    """Raises UsageError: the action takes no rules, or a rule is invalid."""
    if args.rules and args.action not in actions:
        hint = "a name with spaces is one argument: quote it"
        hint = "--role ROLE names each role" if args.action == "set-roles" else hint
        raise UsageError(f"`{args.action}` takes no rules", hint)
    for rule in args.rules:
        try:
            parse_rule(rule)
        except ValueError as error:
            raise UsageError(f"the rule {rule!r}: expected {error}", "a rule is one argument: quote it") from error


def list_all(args: Namespace) -> None:
    """Print a line for each user."""
    items = ask_all(args, "/users", search=args.search)
    if args.json:
        print(json.dumps(items))
    elif not items:
        print(f"there are no users{' like it' if args.search else ''}")
    else:
        print(table([(logs.escaped(item["name"]), words(item)) for item in items]))


def show(args: Namespace) -> None:
    """Print one user."""
    print_user(args, ask(args, "/user", name=args.name))


def add(args: Namespace) -> None:
    """Add a user."""
    stored = ask_credentials(args.name, args).text
    body = {"name": args.name, "hash": stored, "rules": args.rules or None, "roles": args.role or []}
    print_user(args, ask(args, "/users", body))


def set_password(args: Namespace) -> None:
    """Change the password."""
    change(args, hash=ask_credentials(args.name, args).text)


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


def remove(args: Namespace) -> None:
    """Remove a user."""
    ask(args, "/user", method="DELETE", name=args.name)
    print(json.dumps({"removed": args.name}) if args.json else f"{logs.escaped(args.name)} is removed")


def change(args: Namespace, **body: Any) -> None:
    """Change properties of a user."""
    print_user(args, ask(args, "/user", body, method="PATCH", name=args.name))


def print_user(args: Namespace, user: dict[str, Any]) -> None:
    """Print a user."""
    print(json.dumps(user) if args.json else f"{logs.escaped(user['name'])}: {words(user)}")


def words(user: dict[str, Any]) -> str:
    """The rights of a user, in words."""
    parts = [f"role {logs.escaped(role)}" for role in user["roles"]]
    parts += [logs.escaped(rule) for rule in user["rules"] or ()]
    if user["rules"] is None and not user["roles"]:
        parts = ["everything that general rules allow"]
    found = "; ".join(parts) or "nothing"
    return f"disabled; {found}" if user["disabled"] else found


ACTIONS: dict[str, Callable[[Namespace], object]] = {
    "list": list_all,
    "show": show,
    "add": add,
    "set-password": set_password,
    "set-rules": lambda args: change(args, rules=args.rules),
    "set-roles": lambda args: change(args, roles=args.role or []),
    "unrestrict": lambda args: change(args, rules=None),
    "enable": lambda args: change(args, disabled=False),
    "disable": lambda args: change(args, disabled=True),
    "remove": remove,
    "may": may,
    "import": import_file,
}
RIGHTS = ("publish", "subscribe", "read")
WORDS = f"{', '.join(ACTIONS)} [list]"
