"""The part of JSON Schema that the API is described with, and the check of values.

A schema is the dict in the OpenAPI description; `check` supports the keywords of the functions below, no others.
"""

import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}

BODY = "the body"  # its place in the sentence of a fault; its properties stand there by their names
EXPECTED = "x-expected"  # a schema may have it beside `pattern`: the rest of a sentence that begins with "must"


def text(description: str = "", **more: Any) -> Schema:
    """A text; `more` is of JSON Schema."""
    return _described({"type": "string", **more}, description)


def integer(description: str = "", **more: Any) -> Schema:
    """A whole number."""
    return _described({"type": "integer", **more}, description)


def number(description: str = "", **more: Any) -> Schema:
    """A number."""
    return _described({"type": "number", **more}, description)


def boolean(description: str = "", **more: Any) -> Schema:
    """True or false."""
    return _described({"type": "boolean", **more}, description)


def array(items: Schema, description: str = "", **more: Any) -> Schema:
    """Values of a kind; `more` is of JSON Schema."""
    return _described({"type": "array", "items": items, **more}, description)


def table(values: Schema, description: str = "") -> Schema:
    """Values of a kind, by name."""
    return _described({"type": "object", "additionalProperties": values}, description)


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None, description: str = "") -> Schema:
    """An object with these properties, and no others."""
    schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return _described(schema, description)


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def _described(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description} if description else schema


def check(schema: Schema, value: Any, where: str) -> None:
    """Check a value against a schema.

    Raises:
        ValueError: it doesn't fit, with the fault.
    """
    for fault in faults(schema, value, where):
        raise ValueError(fault)


def faults(schema: Schema, value: Any, where: str) -> Iterator[str]:
    """The faults, as sentences."""
    kind: Any = schema["type"]
    if isinstance(kind, list):  # of `nullable`
        kind = kind[0]
        if value is None:
            return
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{where} must be of type {kind}"
    elif kind == "string":
        yield from _text_faults(schema, value, where)
    elif kind in ("integer", "number"):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{where} must be from {schema.get('minimum', '')} to {schema.get('maximum', '')}"
    elif kind == "array":
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{where} must have at most {schema['maxItems']} items"
        for number, inner in enumerate(value):
            yield from faults(schema["items"], inner, f"{where}[{number}]")
    elif kind == "object":
        yield from _object_faults(schema, value, where)


def _text_faults(schema: Schema, value: str, where: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} must be one of {', '.join(schema['enum'])}"
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{where} must have {schema.get('minLength', 0)} to {schema.get('maxLength', 'any')} characters"
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        yield f"{where} must {schema.get(EXPECTED, 'match ' + schema['pattern'])}"
    if any("\ud800" <= character <= "\udfff" for character in value):
        yield f"{where} is not text: it holds half a surrogate pair"


def _object_faults(schema: Schema, value: dict[str, Any], where: str) -> Iterator[str]:
    known = schema["properties"]
    for name in schema["required"]:
        if name not in value:
            yield f"{where} lacks {name}"
    for name, inner in value.items():
        if name not in known:
            yield f"{where} has {name!r}, which is unknown; known are {', '.join(known)}"
        else:
            yield from faults(known[name], inner, name if where == BODY else f"{where}.{name}")
