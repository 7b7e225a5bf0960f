"""`flockmq connect FILE`: the messages of a cluster to databases, Kafka, HTTP endpoints, topics."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from ...broker import logs
from ...broker.commands.parser import Parser
from ...broker.errors import FlockError
from .follow_options import add_follow_options

EXAMPLES = """\
  flockmq connect pipes.toml --dry-run      # show the first rows of each pipe, and write nothing
  flockmq connect pipes.toml

pipes.toml:
  redis = "redis://10.0.0.5:6379"           # of the cluster, whose nodes log messages: [analytics] topics
# log = "http://10.0.0.7:8080"              # or any node of it, or a node alone; with user and password

  [[pipes]]
  name = "readings"
  filter = "site/+/temp"
  sql = "select accepted_at, topic, (payload->>'$.temp')::double as temp from messages"
  [pipes.postgresql]                        # or kafka, influxdb, clickhouse, webhook, mqtt
  url = "postgresql://flockmq:${PGPASSWORD}@10.0.0.7/fleet"
  table = "readings"

Each pipe knows how far it has come: kill the command whenever you like, and start it again anywhere."""


def run(arguments: list[str]) -> int:
    """Run until SIGTERM or Ctrl-C; returns the exit status."""
    args = parse(arguments)
    try:
        from ..connect.pipe import load
        from ..connect.running import preview, run_pipes
        from ..follow.stop import stopped_by_signals
    except ImportError as error:
        raise FlockError(f"{error.name} is not installed", "pip install 'flockmq[connect]'") from None
    config = load(args.file)
    config = replace(config, log=replace(config.log, skips_missing=args.skip_missing))
    logs.configure(args.log_level, "text")
    if args.dry_run:
        for pipe in config.pipes:
            print(f"{pipe.name}: {pipe.kind}")
            for line in preview(config, pipe, args.rows):
                print(f"  {line}")
        return 0
    with stopped_by_signals() as stopped:
        running = run_pipes(config, once=args.once, stopped=stopped)
    for each in running:
        dead = f", {each.dead.count} dead letters" if each.dead.count else ""
        print(f"{each.follower.name}: {each.follower.rows} messages in {each.follower.batches} batches{dead}")
    return 0


def parse(arguments: list[str]) -> Namespace:
    """The command line. Raises UsageError: it is invalid."""
    parser = Parser("connect", "The messages of a cluster to other systems.", "FILE [OPTION...]", EXAMPLES)
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipes, in TOML")
    group = parser.add_argument_group("options")
    group.add_argument("--dry-run", action="store_true", help="print the first rows of each pipe, and write nothing")
    group.add_argument("--rows", type=int, default=10, metavar="N", help="with --dry-run: so many [10]")
    add_follow_options(group, done="written")
    parser.add_general_help(group)
    return parser.parse(arguments)
