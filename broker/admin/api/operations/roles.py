"""The roles of the store: named rules. Two of them are general: `everyone` and `anonymous`."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from ....auth.access_store import Kind
from ....auth.credentials import ROLE_NAMES
from ....auth.roles import MAX_STORED
from ...http.problems import Problem
from ..documents import NAME, RULES, Document, Documents, checked_rules, version_of
from ..operation import Request
from ..schema import Schema, array, record, text

DESCRIPTION = text("for the operator", maxLength=1000)
SETTINGS: dict[str, Schema] = {"rules": RULES, "description": DESCRIPTION}


class Roles(Documents):
    """The roles."""

    kind = Kind.ROLE
    names = ROLE_NAMES
    shown = record(
        {
            "name": NAME,
            "rules": array(text("as a line of an ACL file")),
            "description": text("for the operator"),
            "version": text("changes with the role"),
        }
    )
    new = imported = record({"name": NAME, "rules": RULES}, {"description": DESCRIPTION})
    change = record({}, SETTINGS)
    on_add = "Add a role. `everyone` is a role of all clients, `anonymous` of clients without a user name."
    on_change = (
        "Change the given properties of a role. It takes effect at once at all nodes, for connected clients, too."
    )
    on_remove = "Remove a role. Users keep its name; it gives them nothing then."

    def show(self, name: str, data: bytes) -> dict[str, Any]:
        """A role."""
        try:
            role = json.loads(data)
            rules, description = role["rules"], role.get("description", "")
        except (ValueError, KeyError, TypeError, AttributeError):  # written by another program
            rules, description = [], "unreadable"
        return {"name": name, "rules": rules, "description": description, "version": version_of(data)}

    async def read(self, name: str, body: dict[str, Any]) -> Document:
        found = {key: body[key] for key in SETTINGS if key in body}
        if "rules" in found:
            found["rules"] = checked_rules(found["rules"])
        return found

    def made(self, before: Document | None, given: Document) -> Document:
        return {"rules": [], "description": "", **(before or {}), **given}

    def judge_room(self, request: Request, names: Sequence[str]) -> None:
        known = request.node.access.roles
        if len(known) + sum(name not in known for name in names) > MAX_STORED:
            raise Problem(HTTPStatus.CONFLICT, f"there can be {MAX_STORED} roles at most")


OPERATIONS = Roles().operations()
