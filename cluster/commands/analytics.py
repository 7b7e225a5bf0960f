"""`flockmq analytics run|sql|report|package`: finds the subcommand; each is a file in `cluster/analytics/commands/`."""

from importlib import import_module

from ...broker.commands.parser import Parser
from ...broker.errors import UsageError

COMMANDS = {
    "run": "the Spark job: live statistics of all messages, as tables of files and on $SYS/analytics/#",
    "sql": "run a query over the job's output",
    "report": "one HTML page with plots of the job's output",
    "package": "a zip file for `spark-submit --py-files`",
}
EXAMPLES = """\
  flockmq analytics run --redis redis://10.0.0.5:6379 --output /srv/fleet
  flockmq analytics sql /srv/fleet "select topic, count(*) from messages group by topic order by 2 desc limit 10"
  flockmq analytics report /srv/fleet --output report.html
  flockmq analytics package flockmq-analytics.zip"""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    if arguments and arguments[0] in COMMANDS:
        try:
            return int(import_module(f"flockmq.cluster.analytics.commands.{arguments[0]}").run(arguments[1:]))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in ("cluster", "broker", "_speedups"):
                raise
            raise UsageError(f"the library {error.name} is missing", "pip install 'flockmq[analytics]'") from error
    commands = "\n".join(f"  {name:8} {text}" for name, text in COMMANDS.items())
    parser = Parser("analytics", f"Every message, queryable with Spark SQL.\n\n{commands}", "COMMAND ...", EXAMPLES)
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help="; ".join(COMMANDS))
    parser.add_general_help(parser.add_argument_group("options"))
    parser.parse(arguments)
    raise AssertionError("a command that argparse let through")
