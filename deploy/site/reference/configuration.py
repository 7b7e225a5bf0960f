"""The page of configuration keys, from the schema."""

import re
from collections.abc import Iterator

from flockmq.broker.config.keys import KEYS, LISTENER_KEYS, SECTIONS, Key

from .text import code, escaped

HEAD = """\
# Configuration

For operators. The question: which keys has a node, and what does each of them do? `flockmq sample-config` prints the
same keys as a TOML file with every default.

A flag wins over an environment variable, a variable over the file. Every key has a variable; `--set KEY=VALUE` takes
any key as a flag. `flockmq check-config` prints the effective value of each key and its origin. SIGHUP applies changes
of keys that are marked *reloadable*. Keys marked *per listener* may also stand in a table `[listeners.NAME]`.
"""


def page() -> str:
    """The page."""
    return "\n".join([HEAD, *_lines()])


def _lines() -> Iterator[str]:
    section = ""
    yield from ("## Top of the file", "")
    for key in KEYS.values():
        if key.section != section:
            section = key.section
            yield from (f"## [{section}]", "", escaped(" ".join((SECTIONS[section].__doc__ or "").split())), "")
        yield from _key(key)


def _key(key: Key) -> Iterator[str]:
    help_text = re.sub(r"deploy/docs/(\w+)\.md", r"[\1](../\1.md)", escaped(key.help))
    yield from (f"### {key.name}", "", help_text, "")
    if not key.kind.is_table:
        yield f"- default: {code(key.kind.write(key.field.default))}"
    yield f"- value: {escaped(key.kind.expected)}"
    flag = f", flag {code(key.flag)}" if key.flag else ""
    yield f"- variable {code(key.variable)}{flag}"
    marks = [
        word for word, holds in (("reloadable", key.reloadable), ("per listener", key.name in LISTENER_KEYS)) if holds
    ]
    if marks:
        yield f"- *{', '.join(marks)}*"
    yield ""
