"""`flockmq migrate`: move all state of a stopped broker between a SQLite store and Redis, or from Mosquitto."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...broker.commands.parser import Parser
from ...broker.config.load import load
from ...broker.config.redis_url import masked
from ...broker.config.schema import Config
from ...broker.errors import FlockError, UsageError
from ..migration.endpoints import MOSQUITTO, SQLITE, MosquittoFile, Place, SqlitePlace, is_mosquitto, is_sqlite
from ..migration.migration import migrate, restore

if TYPE_CHECKING:
    from ..migration.redis_place import RedisPlace
    from ..redis.clients import RedisAddress

EXAMPLES = """\
  flockmq migrate sqlite:flockmq.db redis://10.0.0.5:6379       # from one node to a cluster
  flockmq migrate redis://10.0.0.5:6379 sqlite:flockmq.db       # and back
  flockmq migrate redis://10.0.0.5 'redis://10.0.0.6 redis://10.0.0.7'   # to two primaries, each with a shard
  flockmq migrate redis://10.0.0.5 redis+cluster://10.0.0.6:7000 --shards 3
  flockmq migrate sqlite:flockmq.db unix:///run/redis/redis.sock --prefix shop:
  flockmq migrate mosquitto:mosquitto.db sqlite:flockmq.db      # as `flockmq import mosquitto.db sqlite:flockmq.db`
  flockmq migrate --restore sqlite:flockmq.db                   # the state that was moved away is valid again

Stop all nodes first. A command that was interrupted is repeated as it was."""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = Parser(
        "migrate",
        "Move all state of a stopped broker between SQLite stores and Redis: sessions, queues,\n"
        "messages in flight, retained and delayed messages, wills, shared subscriptions, bans.",
        "FROM TO [OPTION...]",
        EXAMPLES,
    )
    parser.add_argument(
        "source", metavar="FROM", help="sqlite:PATH, mosquitto:PATH, or the URLs of Redis as for `serve --redis`"
    )
    parser.add_argument("target", metavar="TO", nargs="?", help="a SQLite store or Redis; it must have no state")
    group = parser.add_argument_group("options")
    add_options(group)
    group.add_argument(
        "--restore", action="store_true", help="make the state at FROM valid again, which was moved away from there"
    )
    add_source_options(parser.add_argument_group("options of a mosquitto.db"))
    parser.add_general_help(group)
    args = parser.parse(arguments)
    if args.restore == (args.target is not None):
        raise UsageError(
            "--restore has one place" if args.restore else "the place to move to is missing",
            "`flockmq migrate --help` explains",
        )
    if args.restore:
        print(restore(place(args.source, settings(args), is_source=True)))
        return 0
    return move(args.source, args)


def add_options(group: argparse._ArgumentGroup, *, target: bool = True) -> None:
    """The flags of the commands that move, copy or restore state. `target`: a place is written."""
    group.add_argument("--prefix", metavar="PREFIX", help="of the keys in Redis [cluster.prefix, mq:]")
    if target:
        group.add_argument("--shards", metavar="N", help="of a target with one URL [cluster.shards, 1]")
    group.add_argument("--config", metavar="FILE", help="the nodes' configuration file, for their expiry and lease")


def add_source_options(group: argparse._ArgumentGroup) -> None:
    """The flags that are about a mosquitto.db."""
    group.add_argument(
        "--no-users",
        action="store_true",
        help="sessions have no owner until their clients return: for a Mosquitto that did not verify user names",
    )
    group.add_argument("--partial", action="store_true", help="take what is whole in a file that was cut")


def settings(args: argparse.Namespace) -> Config:
    """The configuration of the nodes. Raises ConfigError."""
    named = {"cluster.prefix": args.prefix, "cluster.shards": getattr(args, "shards", None)}
    return load({key: text for key, text in named.items() if text is not None}, file=args.config)


def move(origin: str, args: argparse.Namespace) -> int:
    """Move the state at `origin` to the target of the command line; returns the exit status. Raises FlockError."""
    config = settings(args)
    if is_mosquitto(origin):
        path = Path(origin.removeprefix(MOSQUITTO))
        source = MosquittoFile(path, config, keeps_users=not args.no_users, takes_part=args.partial)
        print(migrate(source, place(args.target, config), warn))
        return 0
    if args.no_users or args.partial:
        raise UsageError("--no-users and --partial are for a mosquitto.db")
    from_place, target = place(origin, config, is_source=True), place(args.target, config)
    check_apart(from_place, target)
    if is_sqlite(origin) and not Path(origin.removeprefix(SQLITE)).exists():
        raise FlockError(f"there is no store {Path(origin.removeprefix(SQLITE)).absolute()}", "check the path")
    print(migrate(from_place, target, warn))
    return 0


def place(text: str, config: Config, *, is_source: bool = False) -> Place:
    """The place of this name. Raises UsageError."""
    if is_sqlite(text):
        return SqlitePlace(Path(text.removeprefix(SQLITE)), config)
    return redis_place(text, config, is_source=is_source)


def check_apart(source: Place, target: Place) -> None:
    """Raise FlockError: the places have something in common."""
    both = [set(getattr(place, "addresses", [place.name])) for place in (source, target)]
    if both[0] & both[1]:
        raise FlockError(
            f"from {source.name} to {target.name}: a place of the target is the source's",
            "name other ones, or move to a file before, sqlite:PATH, and from there; the source is free then",
        )


def redis_place(text: str, config: Config, *, is_source: bool = False) -> "RedisPlace":
    """The place in Redis at these URLs.

    Args:
        text: URLs as for cluster.redis.
        config: of the nodes.
        is_source: one URL is of the shards that are there, whatever `cluster.shards` is.

    Raises:
        UsageError: there is no such place.
        FlockError: Redis can't be reached.
    """
    addresses = redis_addresses(text, config, is_source=is_source)
    from ..migration.redis_place import RedisPlace

    return RedisPlace(addresses, config, warn)


def redis_addresses(text: str, config: Config, *, is_source: bool = False) -> "list[RedisAddress]":
    """The addresses of the shards at these URLs; arguments and errors as for `redis_place`."""
    if ":" not in text:
        raise UsageError(f"{text!r} is no place for state", "sqlite:PATH and redis://HOST:PORT are")
    try:
        from ..redis.shard_addresses import MOST_SHARDS, addresses_of, stored_addresses
    except ModuleNotFoundError as error:
        raise UsageError(f"the library {error.name} is missing", "pip install 'flockmq[cluster]'") from error
    try:
        if len(text.split()) > MOST_SHARDS:
            raise ValueError(f"at most {MOST_SHARDS} URLs")
        cluster = replace(config.cluster, redis=text)
        return stored_addresses(cluster) if is_source else addresses_of(cluster)
    except ValueError as error:
        raise UsageError(f"{masked(text)} names no place: expected sqlite:PATH, or {error}") from error


def warn(sentence: str) -> None:
    """Print a warning."""
    print(f"flockmq: warning: {sentence}", file=sys.stderr)
