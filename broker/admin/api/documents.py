"""Users and roles as the API reads and changes them: documents in the store, by name, each with a version.

A change replaces the document that was read, so two changes at the same time are made one after the other. With the
`version` that a client has seen, a document that somebody has changed since is refused instead.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from ...auth.access_store import Change, Kind
from ...auth.credentials import MAX_NAME, NAMES, is_name
from ...auth.rules import parse_rule
from ..http.problems import Problem, missing, unfit
from .operation import AFTER, LIMIT, Request
from .schema import Schema, array, text

Document = dict[str, Any]
Show = Callable[[str, bytes], dict[str, Any]]
ATTEMPTS = 10  # of a change, while others change the same document
MAX_RULES = 1000  # of a user or a role
MAX_ROLES = 100  # of a user
AT_ONCE = 100  # documents of an import: the loop must not stop for long
MAX_IMPORTED_RULES = 2000  # likewise

NAME = text("the name", minLength=1, maxLength=MAX_NAME)
VERSION = text("of the state that was read; refused if it has changed since", maxLength=64)
RULES = array(text("as a line of an ACL file", maxLength=70_000), maxItems=MAX_RULES)
ROLES = array(text("name of a role", minLength=1, maxLength=MAX_NAME), maxItems=MAX_ROLES)
PAGE: dict[str, Schema] = {
    "search": text("how the names begin", maxLength=MAX_NAME, default=""),
    "after": {**AFTER, "default": ""},
    "limit": LIMIT,
}


def version_of(data: bytes) -> str:
    """The version of a document."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


async def listed(request: Request, kind: Kind, show: Show) -> dict[str, Any]:
    """A page of documents, in the order of their names."""
    limit = request.arguments["limit"]
    found = await request.node.broker.access.page(kind, request.arguments["after"], request.arguments["search"], limit)
    return {
        "items": [show(name, data) for name, data in found],
        "next": found[-1][0] if len(found) == limit else None,
    }


async def one(request: Request, kind: Kind, show: Show) -> dict[str, Any]:
    """One document."""
    name = request.arguments["name"]
    return show(name, await _read(request, kind, name))


async def create(request: Request, kind: Kind, name: str, document: Document, show: Show) -> dict[str, Any]:
    """Store a new document."""
    if not is_name(name):
        raise unfit(f"name: expected {NAMES}")
    data = packed(document)
    if not await _change(request, kind, Change(name, None, data)):
        raise Problem(HTTPStatus.CONFLICT, f"there is a {kind} {name!r} already")
    return show(name, data)


async def edit(request: Request, kind: Kind, make: Callable[[Document], Document], show: Show) -> dict[str, Any]:
    """Replace a document by what `make` makes of it."""
    name = request.arguments["name"]
    for _ in range(ATTEMPTS):
        before = await _read(request, kind, name)
        data = packed(make(_parsed(before)))
        request.change.before, request.change.after = show(name, before), show(name, data)
        if data == before or await _change(request, kind, Change(name, before, data)):
            return show(name, data)
    raise Problem(HTTPStatus.CONFLICT, f"others change the {kind} {name!r}, too")


async def remove(request: Request, kind: Kind, show: Show) -> None:
    """Remove a document."""
    name = request.arguments["name"]
    for _ in range(ATTEMPTS):
        before = await _read(request, kind, name)
        request.change.before = show(name, before)
        if await _change(request, kind, Change(name, before, None)):
            return
    raise Problem(HTTPStatus.CONFLICT, f"others change the {kind} {name!r}, too")


async def put_all(
    request: Request,
    kind: Kind,
    items: Sequence[tuple[str, Callable[[Document | None], Document]]],
    show: Show,
    *,
    replace: bool,
) -> dict[str, Any]:
    """Store several documents.

    Args:
        request: of an operator.
        kind: of the documents.
        items: names, and functions that make a document of the one that is there.
        show: shows a document that was there, for the audit log.
        replace: whether documents that are there are replaced; else they stay.

    Returns:
        The numbers of documents that were created, changed and equal; and the names of those that exist and stay.
    """
    names = [name for name, _ in items]
    for name in names:
        if not is_name(name):
            raise unfit(f"name {name!r}: expected {NAMES}")
    if len(set(names)) < len(names):
        raise unfit("a name is given twice")
    before = await request.node.broker.access.find(kind, names)
    request.change.before = [show(name, data) for name, data in zip(names, before, strict=True) if data is not None]
    changes, existing, equal = [], [], 0
    for (name, make), data in zip(items, before, strict=True):
        if data is not None and not replace:
            existing.append(name)
            continue
        made = packed(make(None if data is None else _parsed(data)))
        equal += made == data
        if made != data:
            changes.append(Change(name, data, made))
    made_all = await request.node.broker.access.change(kind, changes) if changes else []
    if not all(made_all):
        raise Problem(HTTPStatus.CONFLICT, f"others change a {kind} of these, too: import them again")
    created = sum(change.before is None for change in changes)
    return {"created": created, "changed": len(changes) - created, "equal": equal, "existing": existing}


def checked_rules(rules: Sequence[str]) -> list[str]:
    """Rules of a request, as they are stored. Raises Problem."""
    for line in rules:
        try:
            parse_rule(line)
        except ValueError as fault:
            raise unfit(f"the rule {line!r}: expected {fault}") from None
    return [line.strip() for line in rules]


def packed(document: Document) -> bytes:
    """A document as it is stored."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _parsed(data: bytes) -> Document:
    """A stored document; an unreadable one is replaced by the next change."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def _read(request: Request, kind: Kind, name: str) -> bytes:
    if not is_name(name):
        raise missing(f"there is no {kind} {name!r}")
    (data,) = await request.node.broker.access.find(kind, [name])
    if data is None:
        raise missing(f"there is no {kind} {name!r}")
    wanted = request.arguments.get("version")
    if wanted is not None and wanted != version_of(data):
        raise Problem(HTTPStatus.CONFLICT, f"the {kind} {name!r} has changed since it was read")
    return data


async def _change(request: Request, kind: Kind, change: Change) -> bool:
    return (await request.node.broker.access.change(kind, [change]))[0]
