"""The sample configuration file."""

import textwrap

from .keys import KEYS, SECTIONS
from .kinds import Choice


def sample() -> str:
    """A commented TOML file that sets every key to its default."""
    lines = [
        "# FlockMQ: every key with its default. Written by `flockmq sample-config`.",
        "#",
        "# Flags win over environment variables, those over this file. The variable of a key is FLOCKMQ_SECTION_KEY.",
        '# Sizes: 65536, "512KiB", "2 MiB". Durations: 10, "10s", "1.5m". (reloadable) = SIGHUP applies a change.',
    ]
    section = ""
    for key in KEYS.values():
        if key.section != section:
            section = key.section
            doc = " ".join((SECTIONS[section].__doc__ or "").split())
            lines += ["", "", *textwrap.wrap(doc, 110, initial_indent="# ", subsequent_indent="# "), f"[{section}]"]
        kind = key.kind
        choices = f" One of {', '.join(kind.words)}." if isinstance(kind, Choice) else ""
        notes = f"{key.help}{choices}{' (reloadable)' if key.reloadable else ''}"
        lines += ["", *textwrap.wrap(notes, 110, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"{'# ' if kind.is_table else ''}{key.field.name} = {kind.write(key.field.default)}")
    return "\n".join(lines) + "\n"
