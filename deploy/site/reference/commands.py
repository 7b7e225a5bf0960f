"""The page of commands: what each prints with --help."""

import io
from collections.abc import Iterator
from contextlib import redirect_stdout

from flockmq.broker.cli import COMMANDS, main
from flockmq.cluster.commands.analytics import COMMANDS as ANALYTICS

from .text import code, escaped, row, table

HEAD = """\
# Commands

For operators and developers. The question: which commands has `flockmq`, and which options? Each section is the text of
`flockmq COMMAND --help`.

The exit status is 0 (done), 1 (failed) or 2 (the command line or the configuration is wrong).
"""


def page() -> str:
    """The page."""
    return "\n".join([HEAD, *_lines()])


def _lines() -> Iterator[str]:
    yield from table(
        ("command", ""), [row(f"[{code(name)}](#{name})", escaped(text)) for name, text in COMMANDS.items()]
    )
    for name in COMMANDS:
        yield from (f"## {name}", "", *_help(name))
        for part in ANALYTICS if name == "analytics" else ():
            yield from (f"### analytics {part}", "", *_help(name, part))


def _help(*command: str) -> Iterator[str]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        status = main([*command, "--help"])
    if status:
        raise RuntimeError(f"flockmq {' '.join(command)} --help: exit status {status}")
    yield from ("```text", printed.getvalue().rstrip(), "```", "")
