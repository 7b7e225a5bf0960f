"""The actions that `flockmq users` and `flockmq roles` have in common, and the checks of their command lines."""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import logs
from ..auth.credentials import Names
from ..auth.rules import parse_rule
from ..errors import UsageError
from .http_api import ask, ask_all
from .output import table
from .parser import Parser

Item = dict[str, Any]


class Stored(NamedTuple):
    """The users or the roles in the store of a broker."""

    kind: str  # "user" or "role"
    names: Names  # that they can have
    words: Callable[[Item], str]  # the rights of one, in words
    more: tuple[str, ...] = ()  # further properties in a list

    # ---- actions ----

    def list_all(self, args: Namespace) -> None:
        """Print a line for each."""
        items = ask_all(args, f"/{self.kind}s", search=args.search or "")
        if args.json:
            print(json.dumps(items))
        elif not items:
            print(f"there are no {self.kind}s{' like it' if args.search else ''}")
        else:
            print(table([self._row(item) for item in items]))

    def _row(self, item: Item) -> tuple[str, ...]:
        return logs.escaped(item["name"]), self.words(item), *(logs.escaped(item[name]) for name in self.more)

    def show(self, args: Namespace) -> None:
        """Print one."""
        self.print_one(args, ask(args, f"/{self.kind}", name=args.name))

    def add(self, args: Namespace, **body: Any) -> None:
        """Add one with these properties."""
        self.print_one(args, ask(args, f"/{self.kind}s", {"name": args.name, **body}))

    def change(self, args: Namespace, **body: Any) -> None:
        """Change these properties of one."""
        self.print_one(args, ask(args, f"/{self.kind}", body, method="PATCH", name=args.name))

    def remove(self, args: Namespace) -> None:
        """Remove one."""
        ask(args, f"/{self.kind}", method="DELETE", name=args.name)
        print(json.dumps({"removed": args.name}) if args.json else f"{logs.escaped(args.name)} is removed")

    def print_one(self, args: Namespace, item: Item) -> None:
        """Print the rights of one."""
        print(json.dumps(item) if args.json else f"{logs.escaped(item['name'])}: {self.words(item)}")

    # ---- command lines ----

    def add_options(self, parser: Parser, actions: Sequence[str]) -> None:
        """Add the arguments, and the options that both commands have."""
        words = f"{', '.join(actions)} [list]"
        parser.add_argument("action", nargs="?", default="list", choices=tuple(actions), metavar="ACTION", help=words)
        of_file = "; for `import` that of a file" if "import" in actions else ""
        parser.add_argument("name", metavar="NAME", nargs="?", help=f"of a {self.kind}{of_file}")
        rules = "for `add` and `set-rules`: as a line of an ACL file"
        parser.add_argument("rules", metavar="RULE", nargs="*", default=[], help=rules)
        parser.add_argument("--search", metavar="TEXT", help="for `list`: only those whose names begin so")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def check(self, args: Namespace, options: Mapping[str, Sequence[str]]) -> None:
        """Check a command line.

        Args:
            args: the command line.
            options: the actions that an option is for, by its name in `args`.

        Raises:
            UsageError: the action does not take the name or an option, or they are invalid.
        """
        explains = f"`flockmq {self.kind}s --help` explains"
        if (args.name is None) != (args.action == "list"):
            raise UsageError(f"`{args.action}` takes {'no' if args.name else 'a'} name", explains)
        if args.name is not None and args.action != "import" and not self.names.has(args.name):
            raise UsageError(f"{args.name!r} can't be a {self.kind}'s name", f"expected {self.names.expected}")
        for name, actions in {"search": ("list",), **options}.items():
            if getattr(args, name) not in (None, False) and args.action not in actions:
                meant = " and ".join(f"`{action}`" for action in actions)
                raise UsageError(f"--{name} is not of `{args.action}`", f"it is for {meant}; {explains}")
        if args.action != "may":
            self._check_rules(args)

    def _check_rules(self, args: Namespace) -> None:
        if args.rules and args.action not in ("add", "set-rules"):
            hint = "a name with spaces is one argument: quote it"
            hint = "--role ROLE names each role" if args.action == "set-roles" else hint
            raise UsageError(f"`{args.action}` takes no rules", hint)
        for rule in args.rules:
            try:
                parse_rule(rule)
            except ValueError as error:
                raise UsageError(f"the rule {rule!r}: expected {error}", "a rule is one argument: quote it") from error
