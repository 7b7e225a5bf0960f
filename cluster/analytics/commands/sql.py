"""`flockmq analytics sql DIR "select ..."`: a query over the job's output, or over the logs themselves."""

import csv
import io
import json
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, TextIO

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from ....broker import logs
from ....broker.commands.output import table
from ....broker.commands.parser import Parser
from ....broker.errors import FlockError, UsageError
from .. import session
from ..faults import first_line, told
from ..job_options import PREFIX
from ..views import log_view, views

EXAMPLES = """\
  flockmq analytics sql /srv/fleet "select prefix, sum(messages) from rates group by prefix"
  flockmq analytics sql /srv/fleet "select * from silence order by at desc limit 20" --json
  flockmq analytics sql /srv/fleet "select topic, text from messages where date = '2026-01-31'" --csv
  flockmq analytics sql --redis redis://10.0.0.5 --since "5 min ago" "select topic, text from messages"
  flockmq analytics sql /srv/fleet "show tables"                  # and "describe rates" its columns"""
SHOWN = 1000  # rows of a table for people
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet executes text that begins so


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    args = parse(arguments)
    os.environ["TZ"] = "UTC"  # else rows have timestamps in local time, while SQL computes in UTC
    time.tzset()
    with tempfile.TemporaryDirectory(prefix="flockmq-") as directory:
        spark = session.start("flockmq analytics sql", args.master, short=True, warehouse=directory)
        try:
            session.few_partitions(spark)
            answer(spark, args)
        finally:
            spark.stop()
    return 0


def parse(arguments: list[str]) -> Namespace:
    """The command line; `directory` is empty with --redis.

    Raises:
        UsageError: it is invalid.
    """
    usage = '[DIR | --redis URL] "select ..." [OPTION...]'
    parser = Parser("analytics sql", "Run a query over the job's output.", usage, EXAMPLES)
    parser.add_argument("words", nargs="+", metavar="DIR QUERY", help="the job's --output, and SQL")
    group = parser.add_argument_group("options")
    group.add_argument("--redis", metavar="URL", help="the logs of this cluster, as `messages`, in place of DIR")
    group.add_argument("--prefix", default=PREFIX, help=f"of its keys [{PREFIX}]")
    group.add_argument("--since", metavar="TIME", help='of the logs: from then on, such as "10 min ago"')
    group.add_argument("--until", metavar="TIME", help="of the logs: up to then")
    group.add_argument("--properties", metavar="NAME,...", help="of the logs: columns such as content-type,user.tenant")
    group.add_argument("--limit", type=int, metavar="N", help=f"rows at most [{SHOWN} of a table, else all]")
    group.add_argument("--json", action="store_true", help="for machines: a list of objects")
    group.add_argument("--csv", action="store_true", help="for spreadsheets")
    group.add_argument(
        "--formulas",
        choices=("escape", "keep"),
        help="a text of CSV that a spreadsheet would execute gets a ' in front [escape for a terminal and NAME.csv]",
    )
    group.add_argument("--master", default="", help="of Spark [local[*]]")
    parser.add_general_help(group)
    args = parser.parse(arguments)
    if len(args.words) != (1 if args.redis else 2):
        words = "one query" if args.redis else "a directory and a query"
        raise UsageError(f"expected {words}, got {len(args.words)} words", "a query is one word in quotes")
    if not args.redis and (args.since or args.until):
        raise UsageError("--since and --until are for --redis", "in a directory use where date = ... or accepted_at")
    if not args.redis and args.properties:
        raise UsageError("--properties is for --redis", "`flockmq analytics run --properties` has them in a directory")
    if args.json and args.csv:
        raise UsageError("--json or --csv, not both")
    if args.formulas and not args.csv:
        raise UsageError("--formulas is for --csv")
    escapes = args.formulas == "escape" if args.formulas else is_for_spreadsheet(sys.stdout)
    args.cell = harmless if escapes else cell
    if args.limit is not None and args.limit < 1:
        raise UsageError("--limit must be 1 or more")
    args.query = args.words[-1]
    args.directory = "" if args.redis else args.words[0]
    return args


def answer(spark: SparkSession, args: Namespace) -> None:
    """Print the result.

    Raises:
        FlockError: the query is invalid, or its data can't be read.
    """
    try:
        if args.redis:
            names = ("redis", "prefix", "since", "until", "properties")
            log_view(spark, {name: getattr(args, name) for name in names})
        else:
            views(spark, args.directory)
        show(spark.sql(args.query), args)
    except AnalysisException as error:
        hint = ""
        if "TABLE_OR_VIEW_NOT_FOUND" in str(error):
            hint = f"there are {', '.join(row.tableName for row in spark.sql('show tables').collect())}"
        raise FlockError(first_line(str(error)), hint) from error
    except PySparkException as error:
        raise told(error, "the query has failed") from error


def show(found: DataFrame, args: Namespace) -> None:
    """Print the rows."""
    limit = args.limit or (None if args.json or args.csv else SHOWN)
    rows = (found if limit is None else found.limit(limit + 1)).collect()
    more = limit is not None and len(rows) > limit
    printer: Callable[[Sequence[str], Sequence[Row]], None]
    printer = print_json if args.json else partial(print_csv, args.cell) if args.csv else print_table
    printer(found.columns, rows[:limit])
    if more:
        print(f"flockmq: only the first {limit} rows are shown; --limit N shows more", file=sys.stderr)


def print_json(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """A list of objects."""
    print(json.dumps([dict(zip(columns, map(plain, row), strict=True)) for row in rows], indent=2))


def print_csv(cell_of: Callable[[Any], object], columns: Sequence[str], rows: Sequence[Row]) -> None:
    """A line of names, then the rows; NULL is empty."""
    for values in (columns, *rows):
        line = io.StringIO()
        csv.writer(line).writerow(map(cell_of, values))  # it ends with CR LF, so both are in quotes within a text
        print(line.getvalue()[:-2])


def is_for_spreadsheet(output: TextIO) -> bool:
    """Whether a person reads the output, or will open its file in a spreadsheet: a terminal, or a file NAME.csv."""
    try:
        return output.isatty() or os.readlink(f"/proc/self/fd/{output.fileno()}").lower().endswith(".csv")
    except (OSError, ValueError):
        return False


def print_table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Aligned columns."""
    if columns:
        lines = [[logs.escaped(str(cell(value, "-"))) if not is_int(value) else value for value in row] for row in rows]
        print(table([list(columns), *lines]))


def is_int(value: object) -> bool:
    """Whether it is a number, aligned to the right."""
    return isinstance(value, int) and not isinstance(value, bool)


def cell(value: Any, null: str = "") -> object:
    """A value as one word or number."""
    value = plain(value)
    if value is None:
        return null
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def harmless(value: Any) -> object:
    """The same, as text that no spreadsheet takes for a formula."""
    found = cell(value)
    return f"'{found}" if isinstance(found, str) and found.startswith(FORMULA) else found


def plain(value: Any) -> Any:
    """A value for JSON; bytes as text, if they are UTF-8."""
    if isinstance(value, Row):
        return {name: plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (bytes, bytearray)):
        return logs.as_text(bytes(value))
    if isinstance(value, datetime):
        return f"{value.isoformat(sep=' ')}"
    if isinstance(value, date) or not isinstance(value, (str, int, float, bool, type(None))):
        return str(value)
    return value
