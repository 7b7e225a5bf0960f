"""`flockmq replay`: publishes logged messages again."""

from broker.commands.parser import Parser
from broker.errors import FlockError

EXAMPLES = """\
  flockmq replay --since "10 min ago" --filter 'site/#'"""


def run(arguments: list[str]) -> int:
    """Do it; returns the exit status."""
    parser = Parser("replay", "Publish logged messages again.", "[OPTION...]", EXAMPLES)
    parser.add_general_help(parser.add_argument_group("options"))
    parser.parse(arguments)
    raise FlockError("not there yet")
