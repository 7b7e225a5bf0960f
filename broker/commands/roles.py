"""`flockmq roles`: the roles in the store of a broker: named rules for users, and the general rules."""

import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from .. import logs
from ..errors import UsageError
from .http_api import add_api_options, ask, ask_all, parse
from .output import table
from .parser import Parser
from .users import check_name, check_rules

EXAMPLES = """\
  flockmq roles add pump 'pattern write devices/%c/#' 'topic read orders/#' --description 'All pumps'
  flockmq roles set-rules pump 'pattern write devices/%c/#'
  flockmq roles describe pump --description 'Pumps of site 1'
  flockmq roles add everyone 'topic read public/#'     # a role of all clients
  flockmq roles add anonymous 'topic read weather/#'   # a role of clients without a user name
  flockmq roles remove pump                            # its users keep the name, which gives them nothing
  flockmq roles list --json

A change takes effect at once at all nodes, for connected clients, too. Roles are given by `flockmq users`, and by
other ways to authenticate."""


def run(arguments: list[str]) -> int:
    """List, show or change roles; returns the exit status."""
    parser = Parser(
        "roles", "The roles of a broker, in its store.", "[list | ACTION NAME [RULE...]] [OPTION...]", EXAMPLES
    )
    parser.add_argument("action", nargs="?", default="list", choices=tuple(ACTIONS), metavar="ACTION", help=WORDS)
    parser.add_argument("name", metavar="NAME", nargs="?", help="of a role")
    rules = "for `add` and `set-rules`: as a line of an ACL file"
    parser.add_argument("rules", metavar="RULE", nargs="*", default=[], help=rules)
    parser.add_argument("--description", metavar="TEXT", help="for `add` and `describe`")
    parser.add_argument("--search", metavar="TEXT", default="", help="list those whose names begin so")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_options(parser)
    args = parse(parser, arguments)
    check_name(args, "role")
    check_rules(args, ("add", "set-rules"))
    if args.action == "describe" and args.description is None:
        raise UsageError("`describe` takes --description TEXT", "an empty TEXT removes the description")
    ACTIONS[args.action](args)
    return 0


def list_all(args: Namespace) -> None:
    """Print a line for each role."""
    items = ask_all(args, "/roles", search=args.search)
    if args.json:
        print(json.dumps(items))
    elif not items:
        print(f"there are no roles{' like it' if args.search else ''}")
    else:
        print(table([(logs.escaped(item["name"]), words(item), logs.escaped(item["description"])) for item in items]))


def show(args: Namespace) -> None:
    """Print one role."""
    print_role(args, ask(args, "/role", name=args.name))


def add(args: Namespace) -> None:
    """Add a role."""
    body = {"name": args.name, "rules": args.rules, "description": args.description or ""}
    print_role(args, ask(args, "/roles", body))


def remove(args: Namespace) -> None:
    """Remove a role."""
    ask(args, "/role", method="DELETE", name=args.name)
    print(json.dumps({"removed": args.name}) if args.json else f"{logs.escaped(args.name)} is removed")


def change(args: Namespace, **body: Any) -> None:
    """Change properties of a role."""
    print_role(args, ask(args, "/role", body, method="PATCH", name=args.name))


def print_role(args: Namespace, role: dict[str, Any]) -> None:
    """Print a role."""
    print(json.dumps(role) if args.json else f"{logs.escaped(role['name'])}: {words(role)}")


def words(role: dict[str, Any]) -> str:
    """The rights of a role, in words."""
    return "; ".join(logs.escaped(rule) for rule in role["rules"]) or "nothing"


ACTIONS: dict[str, Callable[[Namespace], object]] = {
    "list": list_all,
    "show": show,
    "add": add,
    "set-rules": lambda args: change(args, rules=args.rules),
    "describe": lambda args: change(args, description=args.description),
    "remove": remove,
}
WORDS = f"{', '.join(ACTIONS)} [list]"
