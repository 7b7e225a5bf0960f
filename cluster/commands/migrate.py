"""`flockmq migrate`: move all state of a stopped broker between a SQLite store and Redis."""

import sys
from pathlib import Path

from broker.commands.parser import Parser
from broker.config.load import load
from broker.config.redis_url import masked
from broker.config.schema import Config
from broker.errors import UsageError

EXAMPLES = """\
  flockmq migrate sqlite:flockmq.db redis://10.0.0.5:6379       # from one node to a cluster
  flockmq migrate redis://10.0.0.5:6379 sqlite:flockmq.db       # and back
  flockmq migrate sqlite:flockmq.db unix:///run/redis/redis.sock --prefix shop:
  flockmq migrate --restore sqlite:flockmq.db                   # the state that was moved away is valid again

Stop all nodes first. A command that was interrupted is repeated as it was."""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = Parser(
        "migrate",
        "Move all state of a stopped broker between a SQLite store and Redis: sessions, queues,\n"
        "messages in flight, retained messages, wills, shared subscriptions, bans.",
        "FROM TO [OPTION...]",
        EXAMPLES,
    )
    parser.add_argument("source", metavar="FROM", help="sqlite:PATH, or the URL of Redis as for `serve --redis`")
    parser.add_argument("target", metavar="TO", nargs="?", help="likewise the other; it must have no state")
    group = parser.add_argument_group("options")
    group.add_argument("--prefix", metavar="PREFIX", help="of the keys in Redis [cluster.prefix, mq:]")
    group.add_argument("--config", metavar="FILE", help="the nodes' configuration file, for their expiry and lease")
    group.add_argument(
        "--restore", action="store_true", help="make the state at FROM valid again, which was moved away from there"
    )
    parser.add_general_help(group)
    args = parser.parse(arguments)
    if args.restore == (args.target is not None):
        raise UsageError(
            "--restore has one place" if args.restore else "the place to move to is missing",
            "`flockmq migrate --help` explains",
        )
    named = {} if args.prefix is None else {"cluster.prefix": args.prefix}
    config = load(named, file=args.config)
    try:
        from cluster.migration.migration import migrate, restore
        from cluster.migration.places import Place, RedisPlace, SqlitePlace, is_sqlite
        from cluster.redis.clients import RedisAddress
    except ModuleNotFoundError as error:
        raise UsageError(f"the library {error.name} is missing", "pip install 'flockmq[cluster]'") from error

    def place(text: str, config: Config) -> Place:
        if is_sqlite(text):
            return SqlitePlace(Path(text.removeprefix("sqlite:")), config)
        try:
            return RedisPlace(RedisAddress.parse(text, config.cluster.prefix), config, warn)
        except ValueError as error:
            raise UsageError(f"{masked(text)} names no place: expected sqlite:PATH, or {error}") from error

    if args.restore:
        print(restore(place(args.source, config)))
        return 0
    if is_sqlite(args.source) == is_sqlite(args.target):
        raise UsageError("one place is a SQLite store, the other Redis", "`flockmq migrate --help` has examples")
    print(migrate(place(args.source, config), place(args.target, config), warn))
    return 0


def warn(sentence: str) -> None:
    """Print a warning."""
    print(f"flockmq: warning: {sentence}", file=sys.stderr)
