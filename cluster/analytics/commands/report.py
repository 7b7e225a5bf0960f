"""`flockmq analytics report`: one HTML page with plots of the job's output."""

import os
import sys
import time

from ....broker.commands.parser import Parser
from ....broker.errors import FlockError, UsageError
from ..times import LOCAL, parse_time

EXAMPLES = """\
  flockmq analytics report /srv/fleet                          writes report.html
  flockmq analytics report /srv/fleet --since "1 day ago" --title "Plant 4" --output plant4.html
  flockmq analytics report /srv/fleet --since "yesterday" --until "today" --output - | mail ...

The page is one file with everything in it; it asks no other host for anything. Times are this machine's local time."""


def run(arguments: list[str]) -> int:
    """Write the page; returns the exit status."""
    parser = Parser("analytics report", "One HTML page with plots of the job's results.", "DIR [OPTION...]", EXAMPLES)
    parser.add_argument("directory", metavar="DIR", help="the job's --output")
    group = parser.add_argument_group("options")
    group.add_argument("--output", metavar="FILE", default="report.html", help="- is standard output [report.html]")
    group.add_argument("--since", metavar="TIME", help='only from then on: "1 day ago", "today 08:00", ISO 8601')
    group.add_argument("--until", metavar="TIME", help="only up to then")
    group.add_argument("--title", metavar="TEXT", default="Fleet report", help="[Fleet report]")
    parser.add_general_help(group)
    args = parser.parse(arguments)
    since, until = _range(args.since, args.until)

    from ..report.page import page
    from ..report.results import Results

    text = page(Results(args.directory, since, until), args.title)
    _write(args.output, text)
    return 0


def _range(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    now = time.time()
    times: list[int | None] = []
    for flag, text in (("--since", since), ("--until", until)):
        try:
            times.append(None if text is None else parse_time(text, now, LOCAL))
        except ValueError as error:
            raise UsageError(f"{flag} {text!r}: expected {error}") from None
    first, last = times
    if first is not None and last is not None and first >= last:
        raise UsageError("--since is not before --until")
    return first, last


def _write(output: str, text: str) -> None:
    """Write the file as a whole, or leave it unchanged."""
    if output == "-":
        sys.stdout.buffer.write(text.encode())
        return
    part = f"{output}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, output)
    except OSError as error:
        raise FlockError(f"can't write {output}: {error.strerror}") from error
    print(f"{output}: {len(text) / 1024:.0f} KiB")
