"""Common to commands that use Redis: the flags, the client, its errors in one line."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ...broker.commands.parser import Parser
from ...broker.config.load import load
from ...broker.config.schema import ClusterConfig
from ...broker.errors import FlockError, UsageError
from ..redis.keys import Keys

if TYPE_CHECKING:
    import redis

    from ..redis.clients import RedisAddress

TIMEOUT = 5.0  # seconds for a connection, and for a reply


class Cluster(NamedTuple):
    """A cluster as a command sees it, or one of its shards."""

    client: "redis.Redis"  # replies are bytes
    config: ClusterConfig
    address: str  # for people: without passwords
    redis: "RedisAddress"
    keys: Keys
    shards: int = 1


def add_redis_options(parser: Parser) -> None:
    """Add the options for Redis, the output and help."""
    group = parser.add_argument_group("options (flags win over FLOCKMQ_CLUSTER_ variables, those over the file)")
    group.add_argument("--redis", metavar="URL", help="the cluster's Redis, as for `flockmq serve`")
    group.add_argument("--prefix", metavar="PREFIX", help="of its keys [mq:]")
    group.add_argument("--config", metavar="FILE", help="the nodes' configuration file")
    group.add_argument("--json", action="store_true", help="for machines")
    parser.add_general_help(group)


@contextmanager
def connected(args: Namespace, *, shard: int = 0, of: bytes | None = None) -> Iterator[Cluster]:
    """The cluster that the flags, the environment or the file name.

    Args:
        args: of the command.
        shard: one of several, from 0.
        of: a client id, whose shard it is to be.

    Raises:
        UsageError: none is named, or the library is missing.
        FlockError: Redis is unreachable, or replies with an error.
    """
    named = {"cluster.redis": args.redis, "cluster.prefix": args.prefix}
    settings = load({key: text for key, text in named.items() if text is not None}, file=args.config).cluster
    if not settings.redis:
        raise UsageError("no Redis is named", "--redis redis://HOST:PORT does, or FLOCKMQ_CLUSTER_REDIS")
    try:
        import redis

        from ..._speedups.cluster.sharded_journal import shard_of
        from ..redis.shard_addresses import check_place, places_of, stored_addresses
    except ModuleNotFoundError as error:
        raise UsageError(f"the library {error.name} is missing", "pip install 'flockmq[cluster]'") from error
    addresses = stored_addresses(settings)
    number = shard if of is None else shard_of(of, len(addresses))
    address = addresses[number]
    try:
        with address.client(TIMEOUT) as client:
            check_place(client, places_of(addresses)[number], str(address))
            yield Cluster(client, settings, str(address), address, address.keys, len(addresses))
    except (redis.RedisError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # the reader of our output closed it; Redis is well
        raise FlockError(f"can't use Redis at {address}: {error}") from error
