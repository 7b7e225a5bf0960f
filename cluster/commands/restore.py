"""`flockmq restore`: the state of a backup, in a new place."""

from dataclasses import replace
from pathlib import Path

from ...broker.backup import node_backup
from ...broker.backup.archive import CLUSTER, NODE, Archive
from ...broker.commands.parser import Parser
from ...broker.config.redis_url import masked
from ...broker.errors import UsageError
from ..migration.endpoints import SQLITE, is_sqlite
from .migrate import add_options, redis_place, settings

EXAMPLES = """\
  flockmq restore flockmq.tar sqlite:/var/lib/flockmq/flockmq.db     # of a node
  flockmq restore flockmq.tar redis://10.0.0.5:6379                  # of a cluster

Stop all nodes first. The place must have no state: a restore replaces nothing. All messages that were delivered
after the backup are delivered again. `flockmq migrate` moves the restored state of a node into a cluster, or
back."""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = Parser("restore", "The state of a backup, in a new place.", "FILE TO [OPTION...]", EXAMPLES)
    parser.add_argument("file", metavar="FILE", type=Path, help="a backup of `flockmq backup`")
    parser.add_argument("target", metavar="TO", help="sqlite:PATH for a node, the URLs of Redis for a cluster")
    group = parser.add_argument_group("options")
    add_options(group)
    group.add_argument("--no-log", action="store_true", help="without the log of messages")
    parser.add_general_help(group)
    args = parser.parse(arguments)
    config = settings(args)
    archive = Archive(args.file)
    kind = NODE if is_sqlite(args.target) else CLUSTER
    if kind != archive.head.kind:
        other = "sqlite:PATH" if kind == CLUSTER else "the URL of a Redis"
        raise UsageError(
            f"{args.file} is a backup of a {archive.head.kind}, which {masked(args.target)} can't have",
            f"restore it to {other}, then `flockmq migrate` moves the state",
        )
    if kind == NODE:
        path = Path(args.target.removeprefix(SQLITE)).absolute()
        node_backup.restore(archive, path, with_log=not args.no_log)
    else:
        shards = config.cluster.shards if args.shards else len(archive.head.shards)  # of one URL
        place = redis_place(args.target, replace(config, cluster=replace(config.cluster, shards=shards)))
        from ..backup import cluster_backup

        cluster_backup.restore(archive, place, with_log=not args.no_log)
    print(f"restored {masked(args.target)} as {archive.head.source} was at {archive.head.made}")
    return 0
