"""`flockmq backup`: all state of a running broker in one file; and a look into such a file."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from ...broker.backup import node_backup
from ...broker.backup.archive import CHUNK, NODE, Archive, write
from ...broker.commands.http_api import DEFAULT, response
from ...broker.commands.output import size
from ...broker.commands.parser import Parser
from ...broker.config.schema import Config
from ...broker.errors import UsageError
from ...broker.listeners.bind import host_name
from ...broker.version import version
from ..migration.endpoints import SQLITE, SqlitePlace, is_sqlite
from ..migration.sqlite_state import RecordWriter
from ..migration.state import Moved, State
from .migrate import add_options, redis_addresses, settings

SILENCE = 600.0  # seconds until the first byte: the node copies its store before

EXAMPLES = f"""\
  flockmq backup flockmq.tar                               # of the node at {DEFAULT}
  flockmq backup flockmq.tar https://node-1:8080 --token-file token
  flockmq backup flockmq.tar redis://10.0.0.5:6379         # of a cluster
  flockmq backup flockmq.tar 'redis://10.0.0.5 redis://10.0.0.6'   # of a cluster with two primaries
  flockmq backup flockmq.tar sqlite:flockmq.db             # of a node that is stopped
  flockmq backup flockmq.tar --verify                      # is it whole, and how much is in it?
  flockmq restore flockmq.tar sqlite:restored.db

A node and a cluster go on while they are copied. The file has sessions, subscriptions, queues, messages in
flight, retained and delayed messages, wills, shared subscriptions, bans, the log of messages, and the configuration
without secrets. It does not have the files that the configuration names: users, rules, certificates, tokens."""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = Parser("backup", "All state of a broker in one file.", "FILE [FROM] [OPTION...]", EXAMPLES)
    parser.add_argument("file", metavar="FILE", type=Path, help="the backup, a tar archive")
    parser.add_argument(
        "source",
        metavar="FROM",
        nargs="?",
        help=f"URL of a node's HTTP port, URLs of a cluster's Redis, or sqlite:PATH [{DEFAULT}]",
    )
    group = parser.add_argument_group("options")
    group.add_argument("--token-file", metavar="FILE", type=Path, help="file with a token of `flockmq token`, for HTTP")
    add_options(group, target=False)
    group.add_argument("--no-log", action="store_true", help="without the log of messages")
    group.add_argument("--verify", action="store_true", help="check a backup, and count what is in it")
    parser.add_general_help(group)
    args = parser.parse(arguments)
    config = settings(args)
    if args.verify:
        if args.source is not None:
            raise UsageError("--verify takes a backup alone")
        archive = Archive(args.file)
        print(f"{args.file} is whole: {archive.head.source}, {archive.head.made}, FlockMQ {archive.head.version}")
        print(content(archive, config))
    else:
        count = write(args.file, pieces(args, config))
        archive = Archive(args.file)
        print(f"{args.file}: {archive.head.source} as of {archive.head.made}, {size(count)}")
    return 0


def pieces(args: Namespace, config: Config) -> Iterator[bytes]:
    """The archive of the command line's source, in pieces. Raises FlockError."""
    source = DEFAULT if args.source is None else args.source
    if source.startswith(("http://", "https://")):
        return over_http(args, source)
    if is_sqlite(source):
        head = node_backup.head_of(version(), config.cluster.node_name or host_name())
        path = Path(source.removeprefix(SQLITE)).absolute()
        return node_backup.of_stopped(path, config, head, with_log=not args.no_log)
    if args.no_log:
        raise UsageError("a snapshot of Redis has the logs of messages", "`flockmq restore --no-log` leaves them out")
    return of_cluster(args, source, config)


def over_http(args: Namespace, url: str) -> Iterator[bytes]:
    """The archive that a running node sends, in pieces."""
    args.url = url
    query = {"log": "false" if args.no_log else "true"}
    with response(args, "/backup", query, method="POST", timeout=SILENCE) as found:
        while piece := found.read(CHUNK):
            yield piece


def of_cluster(args: Namespace, url: str, config: Config) -> Iterator[bytes]:
    """The archive of a cluster, in pieces. Raises FlockError."""
    from ..backup import cluster_backup

    addresses = redis_addresses(url, config, is_source=True)
    return cluster_backup.pieces(addresses, version(), config, args.file.absolute().parent)


def content(archive: Archive, config: Config) -> Moved:
    """How much is in a backup: all of it is read. Raises FlockError."""
    if archive.head.kind == NODE:
        with node_backup.opened(archive) as path:
            place = SqlitePlace(path, config)
            with place.opened(create=False):
                return counted(place.read())
    from ..backup.redis_snapshot import loaded
    from ..migration.redis_state import RedisState
    from ..migration.sharded_state import ShardedState
    from ..redis.keys import Keys

    with ExitStack() as stack:
        clients = [(stack.enter_context(loaded(archive, shard)), shard) for shard in archive.head.shards]
        return counted(ShardedState([RedisState(client, Keys(shard.prefix), config) for client, shard in clients]))


def counted(state: State) -> Moved:
    """Read all of a state, and count it."""
    writer = RecordWriter(state)
    for _ in writer.blocks():
        pass
    return writer.moved
