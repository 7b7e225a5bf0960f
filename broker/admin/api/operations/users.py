"""The users of the store. Their password hashes never leave it."""

import asyncio
import json
from typing import Any

from ....auth.access_store import Kind
from ....auth.credentials import MAX_NAME, ROLE_NAMES, USER_NAMES, make_credentials
from ....auth.passwords import MAX_PASSWORD, parse_hash
from ...http.problems import unfit
from ..documents import NAME, RULES, Document, Documents, checked_rules, version_of
from ..schema import Schema, array, boolean, nullable, record, text

MAX_ROLES = 100  # of a user
SETTINGS: dict[str, Schema] = {
    "rules": {
        **nullable(RULES),
        "description": "null: none of its own; without roles, it may do all that general rules allow",
    },
    "roles": array(text("name of a role", minLength=1, maxLength=MAX_NAME), maxItems=MAX_ROLES),
    "disabled": boolean("whether its clients are refused, and closed"),
}
CREDENTIALS: dict[str, Schema] = {
    "password": text("of the user; the node stores a hash", minLength=1, maxLength=MAX_PASSWORD),
    "scram": boolean("whether the password may be proven by SCRAM-SHA-256, too"),
    "hash": text("instead of the password: a hash as in a password file", maxLength=1000),
}


class Users(Documents):
    """The users."""

    kind = Kind.USER
    names = USER_NAMES
    shown = record(
        {
            "name": NAME,
            "rules": nullable(array(text("as a line of an ACL file"))),
            "roles": array(text("name of a role")),
            "disabled": boolean("whether its clients are refused"),
            "credentials": text("format of the stored password hash; empty: the stored user is unreadable"),
            "version": text("changes with the user"),
        }
    )
    new = record({"name": NAME}, {**CREDENTIALS, **SETTINGS})
    change = record({}, {**CREDENTIALS, **SETTINGS})
    imported = record({"name": NAME, "hash": CREDENTIALS["hash"]}, SETTINGS)
    on_add = "Add a user, with a password or a hash. A user that exists is not replaced."
    on_change = (
        "Change the given properties of a user. It takes effect at once at all nodes: rights of its connected clients "
        "are replaced; they are closed if it is disabled, or its password has changed."
    )
    on_remove = "Remove a user; its clients are closed."

    def show(self, name: str, data: bytes) -> dict[str, Any]:
        """A user without its hash."""
        try:
            user = json.loads(data)
            scheme = parse_hash(str(user["hash"])).scheme
            rules, roles = user.get("rules"), user.get("roles", [])
        except (ValueError, KeyError, TypeError, AttributeError):  # written by another program
            user, scheme, rules, roles = {}, "", [], []
        return {
            "name": name,
            "rules": rules,
            "roles": roles,
            "disabled": bool(user.get("disabled", False)),
            "credentials": scheme,
            "version": version_of(data),
        }

    async def read(self, name: str, body: dict[str, Any]) -> Document:
        found = {key: body[key] for key in SETTINGS if key in body}
        if found.get("rules") is not None:
            found["rules"] = checked_rules(found["rules"])
        if "roles" in found:
            found["roles"] = list(dict.fromkeys(found["roles"]))
            for role in found["roles"]:
                if not ROLE_NAMES.has(role):
                    raise unfit(f"the role {role!r}: expected {ROLE_NAMES.expected}")
        if "password" in body and "hash" in body:
            raise unfit("password, or hash: only one of them")
        try:
            if "hash" in body:
                found["hash"] = parse_hash(body["hash"]).text
            elif "password" in body:
                password, scram = body["password"].encode(), body.get("scram", False)
                found["hash"] = (await asyncio.to_thread(make_credentials, name, password, scram=scram)).text
        except ValueError as fault:
            raise unfit(f"{'hash' if 'hash' in body else 'password'}: {fault}") from None
        return found

    def made(self, before: Document | None, given: Document) -> Document:
        if before is None and "hash" not in given:
            raise unfit("password, or hash: one of them is needed")
        return {"hash": "", "rules": None, "roles": [], "disabled": False, **(before or {}), **given}


OPERATIONS = Users().operations()
