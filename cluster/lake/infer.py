"""The JSON Schema of a sample of payloads: the types of their members, the ranges of numbers, and how often each is
there."""

import json
import math
from collections import Counter
from typing import Any

MOST_MEMBERS = 1000  # of an object: more are keys of data, not names of columns
MOST_VALUES = 20  # that are counted of a member of strings


class Shape:
    """The values seen in one place of the payloads: of a member, or of the items of an array."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.members: dict[str, Shape] = {}
        self.items: Shape | None = None
        self.least: float | None = None
        self.most: float | None = None

    def add(self, value: Any) -> None:
        """Take a value into account."""
        kind = kind_of(value)
        self.kinds[kind] += 1
        if kind == "object":
            for name, member in value.items():
                if name in self.members or len(self.members) < MOST_MEMBERS:
                    self.members.setdefault(name, Shape()).add(member)
        elif kind == "array":
            self.items = self.items or Shape()
            for item in value:
                self.items.add(item)
        elif kind == "integer" or (kind == "number" and math.isfinite(value)):
            self.least = value if self.least is None else min(self.least, value)
            self.most = value if self.most is None else max(self.most, value)

    @property
    def kind(self) -> str:
        """The type of most values; integers are numbers, if there are both. Empty: there is none but null."""
        counts = Counter({kind: count for kind, count in self.kinds.items() if kind != "null"})
        if counts["number"]:
            counts["number"] += counts.pop("integer", 0)
        return max(counts, key=lambda kind: counts[kind]) if counts else ""

    def schema(self, out_of: int) -> dict[str, Any] | None:
        """The JSON Schema of these values; None: they are no column.

        Args:
            out_of: the number of objects that may have the member.
        """
        kind = self.kind
        if kind == "object":
            listed = {name: shape.schema(self.kinds["object"]) for name, shape in self.members.items()}
            members = {name: schema for name, schema in listed.items() if schema is not None}
            found: dict[str, Any] | None = {"type": kind, "properties": members} if members else None
        elif kind == "array":
            items = None if self.items is None else self.items.schema(self.items.kinds.total())
            found = None if items is None else {"type": kind, "items": items}
        else:
            found = {"type": kind} if kind else None
            if found and self.least is not None and kind in ("integer", "number"):
                found |= {"minimum": self.least, "maximum": self.most}
        if found is not None and (share := self.kinds.total() - self.kinds["null"]) < out_of:
            found["description"] = f"in {100 * share / out_of:.1f} % of the sample"
        return found


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def kind_of(value: Any) -> str:
    """The type of a JSON value, as JSON Schema names it."""
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "array"


class Sample:
    """Payloads, and the schema that most of them have."""

    def __init__(self) -> None:
        self.count = 0
        self.not_json = 0
        self._shape = Shape()

    def add(self, payload: bytes) -> None:
        """Take a payload into account."""
        self.count += 1
        try:
            found = json.loads(payload, parse_constant=_refused)
        except (ValueError, RecursionError):
            self.not_json += 1
            return
        if isinstance(found, dict):
            self._shape.add(found)

    @property
    def objects(self) -> int:
        """The number of payloads that are JSON objects."""
        return self._shape.kinds["object"]

    def schema(self) -> dict[str, Any] | None:
        """The schema; None: no payload is an object with a member."""
        return self._shape.schema(self.objects)
