"""`flockmq lake FILE`: the messages of a broker as rows of tables, each once."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from ...broker import logs
from ...broker.commands.parser import Parser
from ...broker.errors import FlockError
from .follow_options import add_follow_options

EXAMPLES = """\
  flockmq lake lake.toml
  flockmq lake lake.toml --once        # the messages that are in the log now, and no more

lake.toml:
  redis = "redis://10.0.0.5:6379"      # of the cluster, whose nodes log messages: [analytics] topics
# log = "http://10.0.0.7:8080"         # or any node of it, or a node alone; with user and password, or with token
  every = "10 s"                       # between two commits

  [[tables]]
  table = "/srv/lake/readings"         # or "s3://BUCKET/readings", with options
  filter = "site/+/temp"
  schema = "reading.json"              # of the payloads; without it the payload is one column

  [[tables]]
  format = "iceberg"
  table = "fleet.messages"
  options = {type = "sql", uri = "sqlite:////srv/lake/catalog.db", warehouse = "file:///srv/lake"}

Each table knows how far it has come: kill the command whenever you like, and start it again anywhere."""


def run(arguments: list[str]) -> int:
    """Run until SIGTERM or Ctrl-C; returns the exit status."""
    args = parse(arguments)
    try:
        from ..follow.follower import follow
        from ..follow.stop import stopped_by_signals
        from ..lake.config import load
        from ..lake.tables import followers_of
    except ImportError as error:
        raise FlockError(f"{error.name} is not installed", "pip install 'flockmq[lake]'") from None
    config = load(args.file)
    config = replace(config, log=replace(config.log, skips_missing=args.skip_missing))
    logs.configure(args.log_level, "text")
    followers = followers_of(config)
    with stopped_by_signals() as stopped:
        follow(followers, config.log, once=args.once, stopped=stopped.wait)
    for follower in followers:
        unparsed = f", {follower.unparsed} with a payload that does not fit" if follower.unparsed else ""
        print(f"{follower.name}: {follower.rows} messages in {follower.batches} commits{unparsed}")
    return 0


def parse(arguments: list[str]) -> Namespace:
    """The command line. Raises UsageError: it is invalid."""
    parser = Parser("lake", "The messages of a broker as rows of tables.", "FILE [OPTION...]", EXAMPLES)
    parser.add_argument("file", type=Path, metavar="FILE", help="the tables, in TOML")
    group = parser.add_argument_group("options")
    add_follow_options(group, done="committed")
    parser.add_general_help(group)
    return parser.parse(arguments)
