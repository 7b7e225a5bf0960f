"""Common to commands that use the HTTP API of a node: the flags, the request, its errors in one line."""

import json
import sys
import urllib.request
from argparse import Namespace, _ActionsContainer
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit

from .. import logs
from ..config.client_variables import TOKEN_VARIABLE, token_file
from ..errors import FlockError, UsageError
from ..version import version
from .parser import Parser

DEFAULT = "http://127.0.0.1:8080"
SECONDS = 30.0  # for a response
PAGE = 1000  # items
COMMAND = f"flockmq/{version()}"


class NotThere(FlockError):
    """A node replies that the object does not exist."""


def add_api_options(group: _ActionsContainer) -> None:
    """Add the options for the address of a node, and for its token."""
    group.add_argument("--url", default=DEFAULT, help=f"of a node's HTTP port [{DEFAULT}]")
    given = token_file()
    group.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        default=Path(given) if given else None,
        help=f"file with a token of `flockmq token`, or an API key [{TOKEN_VARIABLE}]",
    )


def parse(parser: Parser, arguments: list[str]) -> Namespace:
    """The command line of a command that has the options for a node. Raises UsageError."""
    parser.add_general_help(parser.add_argument_group("general"))
    args = parser.parse(arguments)
    if urlsplit(args.url).scheme not in ("http", "https"):
        raise UsageError(f"--url {args.url!r} is no HTTP URL", f"such as {DEFAULT}")
    return args


def ask(
    args: Namespace,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    method: str | None = None,
    agent: str = COMMAND,
    **query: object,
) -> Any:
    """The JSON of a response, None if it has none: see `response`."""
    with response(args, path, query, body, method=method, agent=agent) as found:
        text = found.read()
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise FlockError(f"{args.url} is no node: its reply is not JSON") from error


def ask_all(args: Namespace, path: str, **query: str) -> list[dict[str, Any]]:
    """All items of a list, asked for page by page; a node that did not answer has a line on standard error.

    Args:
        args: of the command.
        path: below /api/v1.
        query: further parameters of the URL.

    Raises:
        FlockError: no node had an item, and some did not answer.
    """
    items: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    after: str | None = ""
    while after is not None:
        page = ask(args, path, None, after=after, limit=PAGE, **query)
        items += page["items"]
        failures |= page.get("failures", {})
        after = page["next"]
    if failures and not items:
        raise FlockError("; ".join(failure_lines(failures)))
    print_failures(failures)
    return items


def failure_lines(failures: dict[str, str]) -> list[str]:
    """A line for each node that did not answer."""
    return [f"{logs.escaped(node)}: {why}" for node, why in failures.items()]


def print_failures(failures: dict[str, str]) -> None:
    """Name the nodes whose part is missing in a result, on standard error."""
    for line in failure_lines(failures):
        print(f"incomplete: {line}", file=sys.stderr)


@contextmanager
def response(
    args: Namespace,
    path: str,
    query: dict[str, Any],
    body: dict[str, Any] | None = None,
    *,
    method: str | None = None,
    timeout: float = SECONDS,
    agent: str = COMMAND,
) -> Iterator[HTTPResponse]:
    """The response to a request: GET, or POST if there is a body.

    Args:
        args: of the command.
        path: below /api/v1.
        query: parameters of the URL.
        body: JSON of a POST.
        method: another one.
        timeout: seconds without a byte.
        agent: name of this program and its version, for the audit log.

    Raises:
        FlockError: the node does not answer, or refuses.
    """
    data = None if body is None else json.dumps(body).encode()
    token = None if args.token_file is None else read_token(args.token_file)
    url = f"{args.url.rstrip('/')}/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
    request = urllib.request.Request(url, data, {"User-Agent": agent}, method=method)
    if data is not None:
        request.add_header("Content-Type", "application/json")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as found:
            yield cast(HTTPResponse, found)
    except HTTPError as error:
        hint = (
            "--token-file FILE names a file with a token, as `flockmq token` has printed it"
            if error.code in (401, 403)
            else ""
        )
        kind = NotThere if error.code == HTTPStatus.NOT_FOUND else FlockError
        raise kind(f"{args.url} refuses: {_reason(error)}", hint) from error
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason)
        hint = "start the node with --http HOST:PORT, or name its address (--url; for backup, the second argument)"
        raise FlockError(f"{args.url} does not answer: {text}", hint) from error


def read_token(path: Path) -> str:
    """The token in a file. Raises UsageError."""
    try:
        return path.read_text("ascii").strip()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "`flockmq token` prints a token") from error
    except UnicodeError as error:
        raise UsageError(f"{path} has no token: it is not ASCII text", "`flockmq token` prints a token") from error


def _reason(error: HTTPError) -> str:
    try:
        problem = json.loads(error.read())
        return str(problem.get("detail") or problem.get("title") or error.reason)
    except ValueError:
        return str(error.reason)
