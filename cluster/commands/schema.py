"""`flockmq schema infer FILTER`: the JSON Schema of the payloads of logged messages."""

import json
import sys
import time
from argparse import Namespace

from ...broker.commands.client_flags import check_topic_filter, warn
from ...broker.commands.parser import Parser
from ...broker.errors import FlockError, UsageError
from .connection import add_redis_options
from .replay import opened

EXAMPLES = """\
  flockmq schema infer 'site/+/temp' --redis redis://10.0.0.5:6379 > reading.json
  flockmq schema infer 'site/+/temp' --store sqlite:/var/lib/flockmq/flockmq.db --since "1 h ago"

The schema is on standard output: types, ranges of numbers, and how many messages have a member. `flockmq lake` and
the source of Spark make columns of it. Look at it before: a sample has not seen everything."""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    args = parse(arguments)
    from ..analytics.times import LOCAL, parse_time
    from ..lake.infer import Sample
    from ..replay.recording import Recording, Selection

    now = time.time()
    try:
        since = parse_time(args.since, now, LOCAL)
    except ValueError as error:
        raise UsageError(f"--since {args.since!r}: expected {error}") from None
    sample = Sample()
    with opened(args) as logs:
        for chunk in Recording(logs, Selection(since, round(now * 1e6), [args.filter]), warn).chunks():
            for message in chunk:
                sample.add(message.row.payload)
            if sample.count >= args.messages:
                break
    schema = sample.schema()
    if schema is None:
        raise FlockError(
            f"none of {sample.count} messages to {args.filter} since {args.since} has a JSON object as its payload"
        )
    other = sample.count - sample.objects - sample.not_json
    print(f"{sample.count} messages; {sample.not_json} are no JSON, {other} no object", file=sys.stderr)
    print(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2))
    return 0


def parse(arguments: list[str]) -> Namespace:
    """The command line. Raises UsageError: it is invalid."""
    parser = Parser("schema", "The JSON Schema of logged payloads.", "infer FILTER [OPTION...]", EXAMPLES)
    parser.add_argument("action", choices=("infer",), help="infer: from a sample of the log")
    parser.add_argument("filter", metavar="FILTER", help="topic filter of the sample")
    group = parser.add_argument_group("which messages")
    group.add_argument("--since", metavar="TIME", default="1 d ago", help='the sample begins there ["1 d ago"]')
    group.add_argument("--messages", type=int, default=10_000, metavar="N", help="about so many [10000]")
    group.add_argument("--store", metavar="URL", help="beside this store, sqlite:PATH, of a node without Redis")
    add_redis_options(parser)
    args = parser.parse(arguments)
    check_topic_filter(args.filter, "FILTER")
    return args
