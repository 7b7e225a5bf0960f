"""`flockmq replay`: publishes logged messages again, in order, at their pace or faster; or lists them."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ...broker.commands.client_flags import (
    check_topic_filter,
    check_topic_name,
    encoded,
    number,
    warn,
)
from ...broker.commands.client_tls_flags import add_certificate_options, names_certificates, tls_context
from ...broker.commands.parser import Parser
from ...broker.config.broker_url import PORTS, SECURE, WEB, WEB_PATH, port_of
from ...broker.config.load import load
from ...broker.errors import ClientError, ConnectRefusedError, FlockError, UsageError
from .connection import add_redis_options, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ...broker.client.client import Client
    from ...broker.client.options import Options
    from ..analytics.log.log import Logs
    from ..replay.file_log import FileLogs
    from ..replay.player import Manner, Progress
    from ..replay.recording import Recording

TO = "mqtt://127.0.0.1:1883"
SPEED = re.compile(r"(\d+(?:\.\d+)?)x?", re.ASCII)
UNKNOWN_LEVEL = (1, 0x84)  # return code of levels 3 and 4, reason code of level 5
PATIENCE = 10.0  # seconds for a Redis that is away
EXAMPLES = """\
  flockmq replay --since "10 min ago" --filter 'site/#'
  flockmq replay --since "today 08:00" --until "today 08:30" --speed 10x --to mqtt://test.example
  flockmq replay --since "1 h ago" --to mqtts://ada:secret@test.example --cafile ca.pem
  flockmq replay --since "1 h ago" --topic-prefix replay/ --with-times      beside what is live
  flockmq replay --since "1 h ago" --filter 'site/+/temp' --count           how many, how large
  flockmq replay --since "1 h ago" --store sqlite:/var/lib/flockmq/state.db  of a node without Redis
  flockmq replay --since "5 min ago" --client pump-17 --dry-run --json      what pump-17 sent, as JSON lines

Messages keep their order, QoS and RETAIN; they come from one client, this one. Where they are logged again, as by
the cluster that they come from, they are not replayed again: --until is fixed at the start.

exit status: 0 published (QoS 1 and 2: acknowledged), 1 not all published, 2 wrong usage, 130 ended by Ctrl-C."""


def run(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = make_parser()
    args = parser.parse(arguments)
    if args.since is None:
        raise UsageError("no --since", 'name the beginning of the range: --since "10 min ago"')
    check(args)
    options = client_options(args)
    with opened(args) as logs:
        from ..replay import listing
        from ..replay.recording import Recording

        recording = Recording(logs, selection(args), warn)
        if args.count:
            return listing.count(recording, as_json=args.json)
        if args.dry_run:
            return listing.show(recording, args.limit, as_json=args.json)
        return asyncio.run(publish(recording, args, options))


@contextlib.contextmanager
def opened(args: Namespace) -> "Iterator[Logs | FileLogs]":
    """The logs that the arguments or the configuration name: in Redis, or beside the store of a node without Redis."""
    if (folder := log_folder(args)) is not None:
        from ..replay.file_log import FileLogs

        try:
            yield FileLogs(folder)
        except OSError as error:
            if error.filename is None:
                raise  # of the broker that messages are published to, or of our output
            raise FlockError(f"{error.filename} can't be read: {error.strerror}") from error
        return
    with connected(args) as cluster:
        from ..analytics.log.connection import Connection
        from ..analytics.log.log import Logs

        with Connection(cluster.redis, PATIENCE) as connection:
            yield Logs(connection)


def log_folder(args: Namespace) -> Path | None:
    """The folder of the log of a node without Redis; None: the logs are in Redis. Raises UsageError."""
    from ...broker.storage.log_segments import folder_of

    if args.redis is not None and args.store is not None:
        raise UsageError("--redis and --store exclude each other")
    named = {"cluster.redis": args.redis, "store.url": args.store}
    config = load({key: text for key, text in named.items() if text is not None}, file=args.config)
    kind, _, path = config.store.url.partition(":")
    folder = folder_of(Path(path)) if kind == "sqlite" else None
    if args.store is not None:
        if folder is None or not folder.is_dir():
            raise FlockError(
                f"there is no log of messages beside {args.store}", "`analytics.topics` of the node turns it on"
            )
        return folder
    return None if config.cluster.redis or folder is None or not folder.is_dir() else folder


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("replay", "Publish logged messages again.", '--since "10 min ago" [OPTION...]', EXAMPLES)
    group = parser.add_argument_group("which messages")
    group.add_argument("--since", metavar="TIME", help='from when: "10 min ago", "today 08:00", ISO 8601')
    group.add_argument("--until", metavar="TIME", default="now", help="up to when, not included [now]")
    group.add_argument("--filter", metavar="FILTER", action="append", default=[], help="topic filter; may be repeated")
    group.add_argument("--client", metavar="ID", action="append", default=[], help="of this client id; repeatable")
    group.add_argument("--node", metavar="NAME", action="append", default=[], help="accepted by this node; repeatable")
    group.add_argument("--limit", type=number(0, 999_999_999), default=0, metavar="N", help="no more than N")
    group = parser.add_argument_group("how they are published")
    group.add_argument(
        "--to", metavar="URL", default=TO, help=f"mqtt://[USER:PASSWORD@]HOST[:PORT]; mqtts://, ws://, wss:// [{TO}]"
    )
    group.add_argument("-i", "--id", metavar="ID", help="client identifier [a new one each time]")
    group.add_argument("--speed", metavar="N", default="1x", help="10x, 0.5x, or max [1x: at the original pace]")
    group.add_argument("--max-pause", metavar="TIME", help='no pause is longer, such as "5 s"')
    group.add_argument("--topic-prefix", metavar="PREFIX", default="", help="put before each topic name: replay/")
    group.add_argument("--qos", type=number(0, 2), metavar="QOS", help="with this QoS [the original]")
    group.add_argument("--no-retain", dest="retain", action="store_false", help="without RETAIN [the original]")
    group.add_argument(
        "--keep-expiry", action="store_true", help="with the expiry interval of each message [without: none expires]"
    )
    group.add_argument(
        "--with-times", action="store_true", help="payloads become JSON with accepted_at, node, client_id and payload"
    )
    group.add_argument(
        "--max-inflight", type=number(1, 65535), default=100, metavar="N", help="unacknowledged at a time [100]"
    )
    add_certificate_options(parser.add_argument_group("TLS, of mqtts:// and wss://"))
    group = parser.add_argument_group("instead of publishing")
    group.add_argument("--count", action="store_true", help="how many there are, by node")
    group.add_argument("--dry-run", action="store_true", help="a line for each; with --json as for --with-times")
    group = parser.add_argument_group("where the log is")
    group.add_argument("--store", metavar="URL", help="beside this store, sqlite:PATH, of a node without Redis")
    add_redis_options(parser)
    return parser


# ---- from flags to options ----


def check(args: Namespace) -> None:
    """Raises UsageError for contradictory arguments."""
    for topic_filter in args.filter:
        check_topic_filter(topic_filter, "--filter")
    if args.topic_prefix:
        check_topic_name(args.topic_prefix, "--topic-prefix")
    if args.count and args.dry_run:
        raise UsageError("--count and --dry-run exclude each other")


def selection(args: Namespace) -> Any:
    """The selection of messages. Raises UsageError."""
    from ..analytics.times import LOCAL, format_time, parse_time
    from ..replay.recording import Selection

    now = time.time()
    times = {}
    for name in ("since", "until"):
        try:
            times[name] = parse_time(getattr(args, name), now, LOCAL)
        except ValueError as error:
            raise UsageError(f"--{name} {getattr(args, name)!r}: expected {error}") from None
    if times["since"] >= times["until"]:
        raise UsageError(
            f"--since, {format_time(times['since'])}, is not before --until, {format_time(times['until'])}"
        )
    return Selection(**times, topic_filters=args.filter, client_ids=args.client, nodes=args.node)


def manner(args: Namespace) -> "Manner":
    """The manner of publishing. Raises UsageError."""
    from ..analytics.times import SECOND, parse_duration
    from ..replay.player import Manner

    found = SPEED.fullmatch(args.speed)
    if args.speed != "max" and not (found and 0 < float(found[1]) <= 1e6):
        raise UsageError(f"--speed {args.speed!r}: expected a factor such as 10x or 0.5x, or max")
    try:
        pause = parse_duration(args.max_pause) / SECOND if args.max_pause is not None else 0.0
    except ValueError as error:
        raise UsageError(f"--max-pause {args.max_pause!r}: expected {error}") from None
    return Manner(
        speed=float(found[1]) if found else 0.0,
        max_pause=pause,
        topic_prefix=args.topic_prefix,
        qos=args.qos,
        retain=args.retain,
        with_times=args.with_times,
        keep_expiry=args.keep_expiry,
        limit=args.limit,
    )


def client_options(args: Namespace) -> "Options":
    """The target broker, and the client's identity. Raises UsageError."""
    from ...broker.client.options import Options

    manner(args)  # reports errors before any work begins
    expected = "expected mqtt://[USER:PASSWORD@]HOST[:PORT], or mqtts://, ws://, wss://"
    try:
        parts = urlsplit(args.to if "://" in args.to else f"mqtt://{args.to}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--to: {error}", expected) from None
    is_web, is_secure = parts.scheme in WEB, parts.scheme in SECURE
    more = parts.query or parts.fragment or (not is_web and parts.path.strip("/"))
    if parts.scheme not in PORTS or not parts.hostname or more:
        raise UsageError("--to is no broker's address", f"{expected}; --topic-prefix is for topic names")
    if parts.password is not None and not parts.username:
        raise UsageError("--to has a password without a user name", expected)
    if names_certificates(args) and not is_secure:
        raise UsageError("--cafile, --cert, --key and --insecure are for --to mqtts:// or wss://")
    args.tls = is_secure
    return Options(
        host=parts.hostname,
        port=port or port_of(is_web=is_web, is_secure=is_secure),
        tls=tls_context(args),
        websocket=(parts.path.rstrip("/") or WEB_PATH) if is_web else "",
        client_id=args.id or f"flockmq-replay-{os.urandom(4).hex()}",
        username=unquote(parts.username) if parts.username else None,
        password=None if parts.password is None else encoded(unquote(parts.password)),
        max_inflight=args.max_inflight,
        level=5,
    )


# ---- publishing ----


@contextlib.asynccontextmanager
async def connected_client(options: "Options") -> "AsyncIterator[Client]":
    """A client at level 5; at level 4 if the broker does not speak it. Raises ConnectError and its kinds."""
    from ...broker.client.client import Client

    client = Client(options)
    try:
        await client.connect()
    except ConnectRefusedError as error:
        if error.return_code not in UNKNOWN_LEVEL:
            raise
        client = Client(replace(options, level=4))
        await client.connect()
    try:
        yield client
    finally:
        await client.disconnect()


async def publish(recording: "Recording", args: Namespace, options: "Options") -> int:
    """Publish everything, with progress and a summary; returns the exit status."""
    from ..replay.player import GRACE, Player, Progress
    from ..replay.summary import resume_hint, summarize

    began, progress = time.monotonic(), Progress()
    signals: list[int] = []
    async with connected_client(options) as client:
        player = Player(client, manner(args), progress)
        work = asyncio.ensure_future(player.play(recording.chunks()))
        loop = asyncio.get_running_loop()

        def end(signum: int) -> None:
            player.stop.set()
            if signals:
                work.cancel()  # second request to stop
            else:
                loop.call_later(GRACE + 1, work.cancel)  # a broker may not read
            signals.append(signum)

        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, end, signum)
        try:
            await watch(work, progress, recording)
            await work
        except asyncio.CancelledError:
            if not signals:
                raise
            progress.interrupted = True
        except ClientError as error:
            summarize(progress, recording, time.monotonic() - began, as_json=args.json)
            raise ClientError(str(error), resume_hint(progress)) from error
    summarize(progress, recording, time.monotonic() - began, as_json=args.json)
    if signals and progress.interrupted:
        return 128 + signals[0]
    return 1 if progress.refused else 0


async def watch(work: "asyncio.Future[None]", progress: "Progress", recording: "Recording") -> None:
    """Print the progress until the work is done, if standard error is a terminal."""
    from ..replay.summary import progress_line

    is_terminal = sys.stderr.isatty()
    shown, before, at = 0, 0, time.monotonic()
    while not work.done():
        await asyncio.wait([work], timeout=0.5)
        if is_terminal and progress.at:
            moment = time.monotonic()
            rate, before, at = (progress.published - before) / max(0.01, moment - at), progress.published, moment
            line = progress_line(progress, recording, rate)
            print(f"\r{line:{shown}}", end="", file=sys.stderr, flush=True)
            shown = len(line)
    if shown:
        print(f"\r{'':{shown}}\r", end="", file=sys.stderr, flush=True)
