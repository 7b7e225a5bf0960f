"""`flockmq passwd FILE USER`: the users of a password file, with argon2id hashes or SCRAM credentials."""

import getpass
import os
import sys
from argparse import Namespace
from typing import Any

from ..auth.credentials import make_credentials
from ..auth.password_file import NAMES, USERNAME, read_users, set_user
from ..auth.passwords import SCRAM_MIN_ROUNDS, SCRAM_ROUNDS, StoredHash
from ..errors import UsageError
from .parser import Parser

EXAMPLES = """\
  flockmq passwd /etc/flockmq/passwords ada           # asks for the password; makes the file if there is none
  openssl rand -base64 24 | flockmq passwd passwords pump-17
  flockmq passwd passwords ada --scram                # the password may also be proven by SCRAM-SHA-256
  flockmq passwd passwords ada --delete
  flockmq passwd passwords --list

A running node sees a change of its file within seconds; connections of a deleted user are closed."""


def run(arguments: list[str]) -> int:
    """Change or list the users; returns the exit status."""
    parser = Parser(
        "passwd", "Add, change, delete or list the users of a password file.", "FILE [USER] [OPTION...]", EXAMPLES
    )
    parser.add_argument("file", metavar="FILE", help="the password file")
    parser.add_argument("user", metavar="USER", nargs="?", help="user to add or change")
    group = parser.add_argument_group("options")
    action = group.add_mutually_exclusive_group()
    action.add_argument("--delete", action="store_true", help="delete the user")
    action.add_argument("--list", action="store_true", help="print the names of all users")
    add_scram_options(group)
    parser.add_general_help(group)
    args = parser.parse(arguments)
    if args.list:
        for name in sorted(read_users(args.file, warn)):
            print(name)
        return 0
    if args.user is None:
        raise UsageError("a user is missing", "`flockmq passwd FILE USER`, or --list")
    if not USERNAME.fullmatch(args.user):
        raise UsageError(f"{args.user!r} can't be a user's name", NAMES)
    users = read_users(args.file, warn) if os.path.exists(args.file) else {}
    if args.delete and args.user not in users:
        raise UsageError(f"{args.file} has no user {args.user!r}", "--list shows those that it has")
    set_user(args.file, args.user, None if args.delete else ask_credentials(args.user, args))
    return 0


def warn(where: str, fault: str) -> None:
    """Print the fault of a line, which stays in the file."""
    print(f"flockmq: warning: {where}: {fault}", file=sys.stderr)


def add_scram_options(group: Any) -> None:
    """Add the options that choose the format of stored credentials."""
    group.add_argument("--scram", action="store_true", help="credentials for SCRAM-SHA-256 and for plain passwords")
    group.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"of SCRAM, which each client computes at login; {SCRAM_MIN_ROUNDS} or more, by default {SCRAM_ROUNDS}",
    )


def ask_credentials(user: str, args: Namespace) -> StoredHash:
    """The credentials of a password that is asked for, in the format that options choose.

    Raises:
        UsageError: there is no password, or SCRAM can't have this user, this password or so many rounds, or
            rounds were given without SCRAM.
    """
    if args.rounds is not None and not args.scram:
        raise UsageError("--rounds is of SCRAM", "add --scram")
    password = ask_password(user)
    try:
        rounds = SCRAM_ROUNDS if args.rounds is None else args.rounds
        return make_credentials(user, password, scram=args.scram, rounds=rounds)
    except ValueError as error:
        raise UsageError(str(error), "nothing was changed") from error


def ask_password(user: str) -> bytes:
    """A password from the terminal, twice; or the first line of standard input.

    Raises:
        UsageError: the two differ.
    """
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password of {user}: ").encode()
        if getpass.getpass("Once more: ").encode() != password:
            raise UsageError("the two passwords differ", "nothing was changed")
    else:
        password = sys.stdin.buffer.readline().rstrip(b"\r\n")
    return password
