"""`flockmq analytics sql DIR "select ..."`: a query over the job's output, or over the logs themselves."""

import csv
import json
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from broker import logs
from broker.commands.output import table
from broker.commands.parser import Parser
from broker.errors import FlockError, UsageError
from cluster.analytics import session
from cluster.analytics.faults import first_line, told
from cluster.analytics.job_options import PREFIX
from cluster.analytics.views import log_view, views

EXAMPLES = """\
  flockmq analytics sql /srv/fleet "select prefix, sum(messages) from rates group by prefix"
  flockmq analytics sql /srv/fleet "select * from silence order by at desc limit 20" --json
  flockmq analytics sql /srv/fleet "select topic, text from messages where date = '2026-01-31'" --csv
  flockmq analytics sql --redis redis://10.0.0.5 --since "5 min ago" "select topic, text from messages"
  flockmq analytics sql /srv/fleet "show tables"                  # and "describe rates" its columns"""
SHOWN = 1000  # rows of a table for people


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
    printer = print_json if args.json else print_csv if args.csv else print_table
    printer(found.columns, rows[:limit])
    if more:
        print(f"flockmq: only the first {limit} rows are shown; --limit N shows more", file=sys.stderr)


def print_json(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """A list of objects."""
    print(json.dumps([dict(zip(columns, map(plain, row), strict=True)) for row in rows], indent=2))


def print_csv(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """A line of names, then the rows; NULL is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[cell(value) for value in row] for row in rows])


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
