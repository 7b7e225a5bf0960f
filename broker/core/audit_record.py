"""A record of the audit log, and the values that it may have: no secrets, and no more than a few kilobytes."""

import json
from dataclasses import dataclass, fields
from typing import Any

SECRET = frozenset(  # names of values that are left out
    {"payload", "properties", "password", "current", "new_password", "hash", "token", "secret"}
)
LEFT_OUT = "..."  # in place of such a value: a record of a new password shows that there was one
MAX_BYTES = 4096  # of the JSON of arguments, before and after, each
UNKNOWN, DONE, REFUSED, FAILED = "unknown", "done", "refused", "failed"
RESULTS = (UNKNOWN, DONE, REFUSED, FAILED)


@dataclass
class Record:
    """A record."""

    id: str  # sorts by time
    time: float  # seconds since 1970
    node: str  # name of the node that made the change
    by: str  # name of the operator, key or token; of a command: the user of the operating system
    role: str
    credential: str  # login, key, token, password (of an MQTT client), or empty
    tenant: str  # of the token; empty: it is for the whole broker
    address: str  # of the request; empty: the change comes from the machine of the node
    via: str  # api, page, command, agent, signal or file
    operation: str
    arguments: Any = None
    before: Any = None
    after: Any = None
    result: str = UNKNOWN
    detail: str = ""  # reason of a refusal or a failure

    @classmethod
    def parse(cls, data: bytes) -> "Record":
        """Raises ValueError, TypeError: it is none."""
        found = json.loads(data)
        return cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})


def public(value: Any) -> Any:
    """A value without secrets, and without more than MAX_BYTES of JSON."""
    found = _without_secrets(value)
    text = packed(found)
    if len(text) <= MAX_BYTES:
        return found
    return {"bytes": len(text), "begins": text[: MAX_BYTES // 2].decode(errors="ignore")}


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: LEFT_OUT if name in SECRET else _without_secrets(each) for name, each in value.items()}
    return [_without_secrets(each) for each in value] if isinstance(value, (list, tuple)) else value


def packed(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
