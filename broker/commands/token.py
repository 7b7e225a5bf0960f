"""`flockmq token`: a token for the HTTP API and the web page."""

import sys
from pathlib import Path

from ..admin.http.tokens import NAME, ROLES, VIEWER, add
from ..config.tenants import is_tenant
from ..errors import UsageError
from .parser import Parser

EXAMPLES = """\
  flockmq token tokens.txt ann --role admin      # prints it, once; it replaces an older one of this name
  flockmq serve --http :8080 --set http.tokens_file=tokens.txt
  curl -H "Authorization: Bearer TOKEN" http://127.0.0.1:8080/api/v1/nodes"""


def run(arguments: list[str]) -> int:
    """Make a token; returns the exit status."""
    parser = Parser("token", "A token for the HTTP API and the web page.", "FILE NAME [OPTION...]", EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="the file that http.tokens_file names; it is made if need be")
    parser.add_argument("name", metavar="NAME", help="holder of the token, for the log")
    parser.add_argument(
        "--role",
        choices=ROLES,
        default=VIEWER,
        help="viewer: reads (default); operator: also acts on clients, messages, groups; admin: everything",
    )
    parser.add_argument(
        "--tenant", default="", metavar="NAME", help="only for this tenant: opens the API for what is its own"
    )
    parser.add_general_help(parser.add_argument_group("other"))
    args = parser.parse(arguments)
    if not NAME.fullmatch(args.name):
        raise UsageError(f"{args.name!r} is no name for a token", "up to 64 letters, digits and characters of ._@-")
    if args.tenant and not is_tenant(args.tenant):
        raise UsageError(f"{args.tenant!r} is no name of a tenant", "one level of a topic, without wildcards")
    token = add(Path(args.file), args.name, args.role, args.tenant)
    print(token)
    print("keep it: the file has only its hash; a running node accepts it within a second", file=sys.stderr)
    return 0
