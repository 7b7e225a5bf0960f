"""`flockmq users`: the users of a cluster (`auth.redis`), in Redis, and their rules.

A change and its publication are one transaction, so that it takes effect at every node at once: the rules of connected
clients are replaced, and clients of a removed or disabled user are closed.
"""

import json
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from ..._speedups.base.msgpack import pack
from ...broker.auth.cluster_users import User
from ...broker.auth.password_file import NAMES, USERNAME, read_users
from ...broker.auth.rules import parse_rule
from ...broker.commands.output import print_json, table, text
from ...broker.commands.parser import Parser
from ...broker.commands.passwd import add_scram_options, ask_credentials, warn
from ...broker.errors import FlockError, UsageError
from .connection import Cluster, add_redis_options, connected

EXAMPLES = """\
  flockmq users add pump-17                          # asks for the password, or reads a line of standard input
  flockmq users set-rules pump-17 'pattern write devices/%c/#' 'topic read orders/#'
  flockmq users set-rules pump-17                    # may do nothing; `unrestrict` lets it do everything
  flockmq users set-password pump-17 --scram         # may be proven by SCRAM-SHA-256, too
  flockmq users disable pump-17                      # closes its clients; `enable` lets them in again
  flockmq users import /etc/mosquitto/passwd         # all users of a password file
  flockmq users remove pump-17
  flockmq users list --json"""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    usage = "ACTION [NAME] [RULE...] [OPTION...]"
    parser = Parser("users", "Users of a cluster, and their rules.", usage, EXAMPLES)
    actions = [*ACTIONS, "list", "import"]
    parser.add_argument("action", metavar="ACTION", choices=actions, help=", ".join(actions))
    parser.add_argument("name", metavar="NAME", nargs="?", help="of a user; for `import` that of a file")
    rules = "for `add` and `set-rules`: as a line of an ACL file"
    parser.add_argument("rules", metavar="RULE", nargs="*", default=[], help=rules)
    add_redis_options(parser)
    add_scram_options(parser.add_argument_group("for `add` and `set-password`"))
    args = parser.parse(arguments)
    if args.action != "list" and not args.name:
        raise UsageError(f"`{args.action}` needs a name", "`flockmq users --help` explains")
    with connected(args) as cluster:
        if args.action == "list":
            show(all_users(cluster), as_json=args.json)
        elif args.action == "import":
            for name, stored in read_users(args.name, warn).items():
                change(cluster, name, partial(imported, stored.text))
        else:
            act(cluster, args)
    return 0


def act(cluster: Cluster, args: Namespace) -> None:
    """Change one user.

    Raises:
        UsageError: the name or a rule is invalid.
        FlockError: the user exists already, or does not exist.
    """
    if not USERNAME.fullmatch(args.name):
        raise UsageError(f"{args.name!r} can't be a user's name", NAMES)
    for rule in args.rules:
        try:
            parse_rule(rule)
        except ValueError as error:
            raise UsageError(f"the rule {rule!r}: expected {error}", "a rule is one argument: quote it") from error
    stored = ask_credentials(args.name, args).text if args.action in ("add", "set-password") else ""
    change(cluster, args.name, lambda user: ACTIONS[args.action](user, args, stored))


# ---- actions: from the old to the new user; None: there is none ----

Document = dict[str, Any]


def add(user: Document | None, args: Namespace, stored: str) -> Document:
    if user is not None:
        raise FlockError(f"there is a user {args.name!r}", "`set-password` and `set-rules` change it")
    return {"hash": stored, "rules": args.rules or None, "disabled": False}


def imported(stored: str, user: Document | None) -> Document:
    return {"rules": None, "disabled": False, **(user or {}), "hash": stored}


def remove(user: Document | None, args: Namespace, stored: str) -> None:
    there(user, args)


def set_password(user: Document | None, args: Namespace, stored: str) -> Document:
    return {**there(user, args), "hash": stored}


def set_rules(user: Document | None, args: Namespace, stored: str) -> Document:
    return {**there(user, args), "rules": args.rules}


def unrestrict(user: Document | None, args: Namespace, stored: str) -> Document:
    return {**there(user, args), "rules": None}


def enable(user: Document | None, args: Namespace, stored: str) -> Document:
    return {**there(user, args), "disabled": False}


def disable(user: Document | None, args: Namespace, stored: str) -> Document:
    return {**there(user, args), "disabled": True}


def there(user: Document | None, args: Namespace) -> Document:
    if user is None:
        raise FlockError(f"there is no user {args.name!r}", "`flockmq users list` shows all")
    return user


ACTIONS: dict[str, Callable[[Document | None, Namespace, str], Document | None]] = {
    "add": add,
    "remove": remove,
    "set-password": set_password,
    "set-rules": set_rules,
    "unrestrict": unrestrict,
    "enable": enable,
    "disable": disable,
}


# ---- Redis ----


def change(cluster: Cluster, name: str, make: Callable[[Document | None], Document | None]) -> None:
    """Replace a user by the result of `make`, and publish the change; concurrent changes are not lost."""
    keys = cluster.keys

    def transaction(pipe: Any) -> None:
        data = pipe.hget(keys.users, name)
        made = make(None if data is None else read(name, data))
        pipe.multi()
        if made is None:
            pipe.hdel(keys.users, name)
        else:
            pipe.hset(keys.users, name, json.dumps(made))
        pipe.execute_command(keys.publish, keys.all, pack([b"user", name.encode()]))

    cluster.client.transaction(transaction, keys.users)


def read(name: str, data: bytes) -> Document:
    """A user in Redis.

    Raises:
        FlockError: it is unreadable.
    """
    try:
        User.parse(data)
    except ValueError as error:
        raise FlockError(f"the user {name!r} in Redis is unreadable: {error}") from error
    return dict(json.loads(data))


def all_users(cluster: Cluster) -> dict[str, Document]:
    """All users, by name."""
    found = cluster.client.hscan_iter(cluster.keys.users, count=500)
    return {name: read(name, data) for name, data in sorted((name.decode(), data) for name, data in found)}


def show(users: dict[str, Document], *, as_json: bool) -> None:
    """Print them, without the hashes."""
    shown = {name: {key: user.get(key) for key in ("rules", "disabled")} for name, user in users.items()}
    if as_json:
        print_json(shown)
    elif not shown:
        print("no users")
    else:
        print(table([(text(name), words(user)) for name, user in shown.items()]))


def words(user: Document) -> str:
    """The rights of a user, in words."""
    rules = "everything that the ACL file allows" if user["rules"] is None else "; ".join(user["rules"]) or "nothing"
    return f"disabled; {rules}" if user["disabled"] else rules
