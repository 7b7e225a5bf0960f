"""`flockmq roles`: the roles in the store of a broker: named rules for users, and the general rules."""

from argparse import Namespace
from collections.abc import Callable

from .. import logs
from ..auth.credentials import ROLE_NAMES
from ..errors import UsageError
from .http_api import add_api_options, parse
from .parser import Parser
from .stored_access import Item, Stored

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
    ROLES.add_options(parser, tuple(ACTIONS))
    parser.add_argument("--description", metavar="TEXT", help="for `add` and `describe`")
    add_api_options(parser)
    args = parse(parser, arguments)
    ROLES.check(args, {"description": ("add", "describe")})
    if args.action == "describe" and args.description is None:
        raise UsageError("`describe` takes --description TEXT", "an empty TEXT removes the description")
    ACTIONS[args.action](args)
    return 0


def words(role: Item) -> str:
    """The rights of a role, in words."""
    return "; ".join(logs.escaped(rule) for rule in role["rules"]) or "nothing"


ROLES = Stored("role", ROLE_NAMES, words, more=("description",))
ACTIONS: dict[str, Callable[[Namespace], object]] = {
    "list": ROLES.list_all,
    "show": ROLES.show,
    "add": lambda args: ROLES.add(args, rules=args.rules, description=args.description or ""),
    "set-rules": lambda args: ROLES.change(args, rules=args.rules),
    "describe": lambda args: ROLES.change(args, description=args.description),
    "remove": ROLES.remove,
}
