"""The page of the HTTP API, from the OpenAPI document that a node serves."""

import json
from collections.abc import Iterator
from typing import Any

from flockmq.broker.admin.api.api import DESCRIBED
from flockmq.broker.admin.api.openapi import description
from flockmq.broker.admin.api.operation import ROOT
from flockmq.broker.version import version

from .text import code, escaped, row, table

HEAD = """\
# HTTP API

For programs that manage a broker. The question: which requests does a node answer, and with which JSON? Any node of a
cluster answers for all nodes. [HTTP](../HTTP.md) explains tokens, pages of lists and errors.

The same as OpenAPI 3.1: [openapi.json](openapi.json). A node serves its own at `{root}/openapi.json`.

```console
$ curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8080{root}/nodes
```
"""
Json = dict[str, Any]


def document() -> str:
    """The OpenAPI document, as a node with tokens serves it."""
    return json.dumps(description(DESCRIBED, version(), tokens=True), indent=1) + "\n"


def page() -> str:
    """The page."""
    return "\n".join([HEAD.format(root=ROOT), *_lines(json.loads(document()))])


def _lines(found: Json) -> Iterator[str]:
    operations = [
        (f"{method.upper()} {path}", each) for path, of in found["paths"].items() for method, each in of.items()
    ]
    rows = [row(f"[{code(title)}](#{each['operationId']})", escaped(each["summary"])) for title, each in operations]
    yield from table(("request", ""), rows)
    for title, each in operations:
        yield from (f'## <span id="{each["operationId"]}"></span>{title}', "")
        yield from _operation(each)


def _operation(each: Json) -> Iterator[str]:
    role = f"Role: `{each['x-role']}`." if "x-role" in each else "It needs no token."
    yield from (f"{escaped(each['summary'])} {role}", "")
    if parameters := each.get("parameters"):
        rows = [_property(p["name"], p["schema"], p["required"], p["in"]) for p in parameters]
        yield from table(("argument", "in", "kind", "meaning"), rows)
    if body := each.get("requestBody"):
        yield from ("Body:", "", *_record(body["content"]["application/json"]["schema"]))
    yield from _answer(each["responses"])
    problems = ", ".join(f"{status} {of['description']}" for status, of in each["responses"].items() if status >= "4")
    yield from (f"Problems: {problems}.", "")


def _answer(responses: Json) -> Iterator[str]:
    """The response of a success."""
    status = next(each for each in responses if each.startswith("2"))
    schema = responses[status].get("content", {}).get("application/json", {}).get("schema")
    if schema is None:
        yield from (f"Answer {status}: {responses[status]['description']}.", "")
    else:
        yield from (f"Answer {status}:", "", *_record(schema))


def _record(schema: Json) -> list[str]:
    """The properties of an object, and of objects within it."""
    return table(("property", "kind", "meaning"), list(_properties(schema, "")))


def _properties(schema: Json, prefix: str) -> Iterator[str]:
    for name, of in schema.get("properties", {}).items():
        optional = "" if name in schema.get("required", ()) else "optional"
        yield row(code(prefix + name), ", ".join(filter(None, (_kind(of), optional))), _meaning(of))
        yield from _properties(of.get("items", of), f"{prefix}{name}{'[]' if 'items' in of else ''}.")
    if values := schema.get("additionalProperties"):
        yield from _properties(values, f"{prefix}NAME.")


def _property(name: str, schema: Json, required: bool, place: str) -> str:
    return row(code(name), place + (", required" if required else ""), _kind(schema), _meaning(schema))


def _kind(schema: Json) -> str:
    kind = schema.get("type", "any")
    words = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        words = f"array of {_kind(schema['items'])}"
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([words, *bounds])


def _meaning(schema: Json) -> str:
    parts = [escaped(schema.get("description", ""))]
    if "enum" in schema:
        parts.append(f"one of {', '.join(code(json.dumps(value)) for value in schema['enum'])}")
    if schema.get("default") not in (None, ""):
        parts.append(f"default {code(json.dumps(schema['default']))}")
    return "; ".join(filter(None, parts))
