"""Prints deploy/docs/internals/CALLS.md: `python -m tests.architecture.calls_page > deploy/docs/internals/CALLS.md`."""

from collections.abc import Iterator
from textwrap import fill

from flockmq.cluster.redis.calls import (
    ACKS,
    BLOCK,
    CALLS,
    FREES,
    HANDED_OUT,
    NOTIFICATIONS,
    READS,
    RECORDS,
    SETTLED,
    Call,
)
from flockmq.cluster.redis.kinds import Fields, Kind, ListOf, Packed

HEAD = """\
# The functions in Redis

For developers of the cluster. This page is printed from `cluster/redis/calls.py`: each function of the library, its
arguments and its reply. [CLUSTER.md](../CLUSTER.md) has their place in the protocol.

A call is `FCALL flockmq_<name> 0 <prefix> <arguments>`; in a Redis Cluster it
[declares one key](slot.md). `node` is the id of the calling node. An argument is a
text; `0 or 1` is a flag. `[a, b]` is an array, `[a, b, ...]` a flat list in which the fields follow each other any
number of times, `[[a, b], ...]` a list of arrays. `packed` is a text of MessagePack. A reply with more than one outcome
has its name first; `gone`: the calling node is no member of the cluster, and nothing has changed.
"""
SHARED = {"BLOCK": BLOCK, "ACKS": ACKS, "SETTLED": SETTLED}


def page() -> str:
    """The page."""
    return HEAD + "\n" + "\n".join(line for name, call in CALLS.items() for line in _call(name, call)) + _parts()


def _call(name: str, call: Call) -> Iterator[str]:
    names = [*(["node"] if call.of_node else []), *call.arguments, *(["messages ..."] if call.rest else [])]
    flags = {READS: "reads only", FREES: "runs without memory"}
    notes = "; ".join(flags[flag] for flag in call.flags)
    yield _line(f"- **`{name}`** {', '.join(names)}{f' ({notes})' if notes else ''}")
    yield _line(f"  {call.meaning}")
    for each, kind in call.arguments.items():
        if isinstance(kind, Packed):
            yield _line(f"  - `{each}`: packed {_shown(kind.kind)}{', or nothing' if kind.or_nothing else ''}")
    yield _line(f"  - reply: {_reply(call.reply)}")
    yield ""


def _reply(kind: Kind) -> str:
    text = str(kind)
    handed_out = ", ".join(f"{name} {each}" for name, each in HANDED_OUT.items())
    return text.replace(handed_out, "messages and keys of groups")


def _short(text: str) -> str:
    """The kinds of values, without the records of changes."""
    for records in (BLOCK.fields["changes"], NOTIFICATIONS["changes"]["records"]):
        text = text.replace(str(records), "packed list of records, below")
    return text


def _shown(kind: Kind) -> str:
    return next((f"`{name}`, below" for name, each in SHARED.items() if each is kind), str(kind))


def _parts() -> str:
    lines = ["", "## Parts of calls", ""]
    lines += [_line("Messages and keys of groups, in a reply:"), ""]
    lines += [_line(f"- `{name}`: {kind}") for name, kind in HANDED_OUT.items()]
    for name, kind in SHARED.items():
        fields = kind.fields if isinstance(kind, Fields) else {}
        lines += ["", f"`{name}`:", ""]
        lines += [_line(f"- `{each}`: {_short(str(part))}") for each, part in fields.items()]
        if isinstance(kind, ListOf):
            lines.append(_line(f"- {kind}"))
    for title, kinds in (("Messages to nodes", NOTIFICATIONS), ("Records of a change", RECORDS)):
        lines += ["", f"## {title}", "", _line("An array, its kind first."), ""]
        lines += [_line(f"- `{name}`: {_short(str(Fields(fields))[1:-1])}") for name, fields in kinds.items()]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    indent = " " * (len(text) - len(text.lstrip()))
    deeper = indent + ("  " if text.lstrip().startswith("- ") else "")
    whole = {"break_long_words": False, "break_on_hyphens": False}
    return fill(text.strip(), 120, initial_indent=indent, subsequent_indent=deeper, **whole)


if __name__ == "__main__":
    print(page(), end="")
