"""The operations on users and on roles: documents in the store, by name, each with a version.

A change replaces the document that was read, so two changes at the same time are made one after the other. With the
`version` that a client has seen, a document that has changed since is refused instead.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from ...auth.access_store import Change, Kind
from ...auth.credentials import MAX_NAME, Names
from ...auth.rules import parse_rule
from ..http.problems import Problem, missing, unfit
from ..http.tokens import ADMIN
from .operation import AFTER, LIMIT, Operation, Request
from .operation import listed as page_of
from .schema import Schema, array, boolean, integer, record, text

Document = dict[str, Any]
ATTEMPTS = 10  # of a change, while others change the same document
MAX_RULES = 1000  # of a user or a role
AT_ONCE = 100  # documents of an import: the loop must not stop for long
MAX_IMPORTED_RULES = 2000  # likewise

NAME = text("the name", minLength=1, maxLength=MAX_NAME)
VERSION = text("of the state that was read; refused if it has changed since", maxLength=64)
RULES = array(text("as a line of an ACL file", maxLength=70_000), maxItems=MAX_RULES)
PAGE: dict[str, Schema] = {
    "search": text("how the names begin", maxLength=MAX_NAME, default=""),
    "after": {**AFTER, "default": ""},
    "limit": LIMIT,
}
ONE: dict[str, Schema] = {"name": NAME}
VERSIONED: dict[str, Schema] = {"name": NAME, "version": VERSION}
IMPORTED = record(
    {
        "created": integer("number of new ones"),
        "changed": integer("number of those that were replaced"),
        "equal": integer("number of those that were there in this form"),
        "existing": array(text(), "names that are there, and stay as they are"),
    }
)
AWAY = HTTPStatus.SERVICE_UNAVAILABLE
UNFIT = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, AWAY)


class Documents(ABC):
    """The documents of a kind, and the operations on them."""

    kind: Kind
    names: Names  # that they can have
    shown: Schema  # of a document in a response
    new: Schema  # of the body of POST
    change: Schema  # of the body of PATCH
    imported: Schema  # of a document of an import
    on_add: str  # summaries of operations
    on_change: str
    on_remove: str

    @abstractmethod
    def show(self, name: str, data: bytes) -> dict[str, Any]:
        """A stored document for a response, without secrets."""

    @abstractmethod
    async def read(self, name: str, body: dict[str, Any]) -> Document:
        """The properties of a request as they are stored. Raises Problem: one is invalid."""

    @abstractmethod
    def made(self, before: Document | None, given: Document) -> Document:
        """A stored document with the given properties. Raises Problem: a new one lacks some."""

    def judge_room(self, request: Request, names: Sequence[str]) -> None:  # noqa: B027 - some have no bound
        """Raises Problem: there is no room for documents of these names."""

    # ---- the operations ----

    async def page(self, request: Request) -> dict[str, Any]:
        """A page of documents, in the order of their names."""
        arguments = request.arguments
        limit = arguments["limit"]
        found = await request.node.broker.access.page(self.kind, arguments["after"], arguments["search"], limit)
        return {
            "items": [self.show(name, data) for name, data in found],
            "next": found[-1][0] if len(found) == limit else None,
        }

    async def one(self, request: Request) -> dict[str, Any]:
        """One document."""
        name = request.arguments["name"]
        return self.show(name, await self._stored(request, name))

    async def add(self, request: Request) -> dict[str, Any]:
        """Store a new document."""
        name = request.body["name"]
        self._judge_names([name])
        self.judge_room(request, [name])
        data = packed(self.made(None, await self.read(name, request.body)))
        if not await self._change(request, Change(name, None, data)):
            raise Problem(HTTPStatus.CONFLICT, f"there is a {self.kind} {name!r} already")
        return self.show(name, data)

    async def edit(self, request: Request) -> dict[str, Any]:
        """Change the given properties of a document."""
        name = request.arguments["name"]
        given = await self.read(name, request.body)
        for _ in range(ATTEMPTS):
            before = await self._stored(request, name)
            data = packed(self.made(_parsed(before), given))
            request.change.before, request.change.after = self.show(name, before), self.show(name, data)
            if data == before or await self._change(request, Change(name, before, data)):
                return self.show(name, data)
        raise self._contended(name)

    async def remove(self, request: Request) -> None:
        """Remove a document."""
        name = request.arguments["name"]
        for _ in range(ATTEMPTS):
            before = await self._stored(request, name)
            request.change.before = self.show(name, before)
            if await self._change(request, Change(name, before, None)):
                return
        raise self._contended(name)

    async def import_all(self, request: Request) -> dict[str, Any]:
        """Store several documents; replace the given properties of those that exist, if the request says so.

        Returns:
            The numbers of documents that were created, changed and equal; and the names of those that exist and stay.
        """
        bodies = request.body[f"{self.kind}s"]
        names = [body["name"] for body in bodies]
        self._judge_names(names)
        if len(set(names)) < len(names):
            raise unfit("a name is given twice")
        if sum(len(body.get("rules") or ()) for body in bodies) > MAX_IMPORTED_RULES:
            raise unfit(f"{self.kind}s: more than {MAX_IMPORTED_RULES} rules; send them in several requests")
        self.judge_room(request, names)
        given = [await self.read(body["name"], body) for body in bodies]
        stored = await request.node.broker.access.find(self.kind, names)
        there = [(name, data) for name, data in zip(names, stored, strict=True) if data is not None]
        request.change.before = [self.show(name, data) for name, data in there]
        replace = request.body.get("replace", False)
        changes, equal = [], 0
        for name, before, properties in zip(names, stored, given, strict=True):
            if before is not None and not replace:
                continue
            data = packed(self.made(None if before is None else _parsed(before), properties))
            equal += data == before
            if data != before:
                changes.append(Change(name, before, data))
        if changes and not all(await request.node.broker.access.change(self.kind, changes)):
            raise Problem(HTTPStatus.CONFLICT, f"others change a {self.kind} of these, too: import them again")
        created = sum(change.before is None for change in changes)
        existing = [] if replace else [name for name, _ in there]
        return {"created": created, "changed": len(changes) - created, "equal": equal, "existing": existing}

    def operations(self) -> tuple[Operation, ...]:
        """The rows of the API."""
        kind, one, several = self.kind, f"/{self.kind}", f"/{self.kind}s"
        listed = f"{kind.capitalize()}s, in the order of their names."
        imported = (
            f"Add several {kind}s. With `replace`, the given properties of {kind}s that exist are replaced; without, "
            "they stay."
        )
        bodies = {f"{kind}s": array(self.imported, maxItems=AT_ONCE)}
        batch = record(bodies, {"replace": boolean(f"whether {kind}s that exist are changed")})
        return (
            Operation(
                "GET", several, f"{kind}s", listed, self.page, page_of(self.shown), arguments=PAGE, problems=(AWAY,)
            ),
            Operation(
                "GET", one, kind, f"A {kind}.", self.one, self.shown,
                arguments=ONE, required=("name",), problems=(HTTPStatus.NOT_FOUND, AWAY),
            ),
            Operation(
                "POST", several, f"add_{kind}", self.on_add, self.add, self.shown,
                role=ADMIN, body=self.new, problems=UNFIT,
            ),
            Operation(
                "PATCH", one, f"change_{kind}", self.on_change, self.edit, self.shown,
                role=ADMIN, arguments=VERSIONED, required=("name",), body=self.change,
                problems=(HTTPStatus.NOT_FOUND, *UNFIT),
            ),
            Operation(
                "DELETE", one, f"remove_{kind}", self.on_remove, self.remove,
                role=ADMIN, arguments=VERSIONED, required=("name",),
                problems=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, AWAY),
            ),
            Operation(
                "POST", f"{several}/import", f"import_{kind}s", imported, self.import_all, IMPORTED,
                role=ADMIN, body=batch, problems=UNFIT,
            ),
        )  # fmt: skip

    # ---- parts ----

    def _judge_names(self, names: Sequence[str]) -> None:
        for name in names:
            if not self.names.has(name):
                raise unfit(f"name {name!r}: expected {self.names.expected}")

    async def _stored(self, request: Request, name: str) -> bytes:
        if not self.names.has(name):
            raise missing(f"there is no {self.kind} {name!r}")
        (data,) = await request.node.broker.access.find(self.kind, [name])
        if data is None:
            raise missing(f"there is no {self.kind} {name!r}")
        wanted = request.arguments.get("version")
        if wanted is not None and wanted != version_of(data):
            raise Problem(HTTPStatus.CONFLICT, f"the {self.kind} {name!r} has changed since it was read")
        return data

    async def _change(self, request: Request, change: Change) -> bool:
        return (await request.node.broker.access.change(self.kind, [change]))[0]

    def _contended(self, name: str) -> Problem:
        return Problem(HTTPStatus.CONFLICT, f"others change the {self.kind} {name!r}, too")


def version_of(data: bytes) -> str:
    """The version of a document."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


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
