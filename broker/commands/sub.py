"""`flockmq sub`: subscribe and print messages, compatible with mosquitto_sub.

A message is acknowledged after it has been written and flushed, so QoS 1 and 2 lose nothing when the process is killed.
"""

import asyncio
import random
import signal
import sys
import time
from argparse import Namespace
from typing import TYPE_CHECKING

from ..errors import ClientError, ConnectionLostError, ConnectRefusedError, FlockError, UsageError
from .client_flags import (
    add_client_options,
    apply_url,
    check_topic_filter,
    client_options,
    number,
    print_packet,
    seconds,
    warn,
)
from .client_flags import parse as parse_flags
from .output_format import compile_format
from .parser import Parser

if TYPE_CHECKING:
    from ..._speedups.codec.packets import Publish
    from ..._speedups.protocol.client_events import Subscribed, Unsubscribed
    from ..client.options import Options
    from .output_format import Piece

TIMED_OUT = 27  # the exit status of mosquitto_sub after -W
REFUSED = 0x80  # SUBACK's return code for a filter that was not accepted
# Codes of a refused CONNECT that may pass by itself: server unavailable, busy, shutting down, quota, rate.
PASSING = {3, 0x88, 0x89, 0x8B, 0x97, 0x9F}
# Codes of DISCONNECT after which another connection would end the same way: a fault of ours, no rights any more, and
# another client with this client identifier, which that connection would end in turn.
FINAL = {0x81, 0x82, 0x87, 0x8E, 0x93, 0x94, 0x95, 0x9D}
RETAIN_HANDLING = {"always": 0, "new": 1, "never": 2, "0": 0, "1": 1, "2": 2}
FIRST_DELAY, LAST_DELAY = 0.5, 30.0  # seconds until a new attempt to connect; doubles in between
FLUSH_EVERY = 100  # messages written without flushing and acknowledging
EXAMPLES = """\
  flockmq sub -t 'sensors/#' -v
  flockmq sub -t a -t 'b/+' -T b/noise -q 1         two filters, without one topic
  flockmq sub -t state -C 1 -W 5                    the first message within five seconds
  flockmq sub -t 'a/#' --since 10m -v                the last ten minutes, then live messages
  flockmq sub -t '#' --retained-only -W 1 -v        retained messages
  flockmq sub -t jobs -q 2 -c -i worker-1           nothing lost while not running
  flockmq sub -t 'a/#' -V 5 -D subscribe subscription-identifier 7 -F '%S %t %C %P'
  flockmq sub -t '#' -F '@H:@M:@S %t %q %x'         time, topic, QoS, payload in hexadecimal

fields of -F: %t topic, %p payload, %x %X payload in hexadecimal, %l its length, %q QoS, %r retain, %m packet
identifier, %j %J JSON, %I time, %U Unix time; %10t %-10t pads, %.5p cuts; @H @M ... as in date(1), @N nanoseconds.
MQTT 5: %A topic alias, %C content type, %D correlation data, %E message expiry interval, %F payload format
indicator, %P user properties, %R response topic, %S subscription identifiers.

exit status: 0 done (-C, -E, --retained-only, signal), 1 failed, 2 wrong usage, 27 timed out (-W)."""


def run(arguments: list[str]) -> int:
    """Subscribe and print by the arguments; returns the exit status."""
    args = parse(arguments)
    options = client_options(args, "sub", needs_5(args))
    try:
        return asyncio.run(Subscriber(args, options).run())
    except ClientError:
        if args.quiet:
            return 1
        raise


def parse(arguments: list[str]) -> Namespace:
    """The checked arguments; `args.write` formats a message. Raises UsageError."""
    parser = Parser("sub", "Subscribe and print each message.", "-t FILTER [OPTION...]", EXAMPLES)
    group = parser.add_argument_group("subscription")
    group.add_argument(
        "-t", "--topic", dest="topics", action="append", default=[], metavar="FILTER", help="topic filter; repeatable"
    )
    group.add_argument(
        "--since",
        metavar="TIME",
        help="also earlier messages, from the log: 10m, 2026-11-22T10:00Z, earliest, or a position (FlockMQ)",
    )
    group.add_argument("-q", "--qos", type=number(0, 2), default=0, help="0, 1 or 2 at most [0]")
    group.add_argument(
        "-T",
        "--filter-out",
        dest="hidden",
        action="append",
        default=[],
        metavar="FILTER",
        help="don't print these; repeatable",
    )
    group.add_argument(
        "-U",
        "--unsubscribe",
        dest="unsubscribed",
        action="append",
        default=[],
        metavar="FILTER",
        help="unsubscribe; repeatable",
    )
    group.add_argument("--no-local", action="store_true", help="no messages of this client itself (MQTT 5)")
    group.add_argument(
        "--retain-as-published", action="store_true", help="keep the retain flag of live messages (MQTT 5)"
    )
    group.add_argument(
        "--retain-handling",
        choices=list(RETAIN_HANDLING),
        metavar="WHEN",
        help="when retained messages are sent: always, new (to a new subscription) or never (MQTT 5) [always]",
    )
    group = parser.add_argument_group("output")
    group.add_argument("-v", "--verbose", action="store_true", help="topic and payload")
    group.add_argument("-F", "--format", help="a line of your own, see below")
    group.add_argument("-N", "--no-eol", action="store_true", help="no line end after a payload")
    group.add_argument("-R", "--no-retained", action="store_true", help="don't print retained messages")
    group = parser.add_argument_group("end")
    group.add_argument("-C", "--count", type=number(1, 999_999_999), metavar="N", help="after N printed messages")
    group.add_argument("-W", "--timeout", type=seconds, metavar="SECONDS", help="after this time, with exit status 27")
    group.add_argument("-E", "--exit-on-subscribed", action="store_true", help="once subscribed")
    group.add_argument("--retained-only", action="store_true", help="at the first message that is not retained")
    add_client_options(parser)
    args = parse_flags(parser, arguments)
    topic = apply_url(args)
    args.topics += [] if topic is None else [topic]
    if not args.topics and not args.unsubscribed:
        raise UsageError("no topic filter", "give one with -t, or -L")
    for flag, filters in (("-t", args.topics), ("-T", args.hidden), ("-U", args.unsubscribed)):
        for topic_filter in filters:
            check_topic_filter(topic_filter, flag)
    if args.since is not None:
        check_since(args.since)
        args.level = args.level or "mqttv5"  # its SUBACK has the reason of a refusal
        args.topics = [f"$stream/{args.since}/{topic_filter}" for topic_filter in args.topics]
        for topic_filter in args.topics:
            check_topic_filter(topic_filter, "--since")
    if args.no_retained and args.retained_only:
        raise UsageError("-R and --retained-only exclude each other")
    args.write = writer(args)
    return args


def check_since(since: str) -> None:
    """Raises UsageError: no stream begins there."""
    from ..streams.start_position import parse_since

    try:
        parse_since(since, 0)
    except ValueError:
        expected = "earliest, now, a duration such as 10m, a time such as 2026-11-22T10:00Z, or a position"
        raise UsageError(f"--since {since!r}: expected {expected}") from None


def needs_5(args: Namespace) -> list[str]:
    """The flags in use that need level 5."""
    flags = {
        "--no-local": args.no_local,
        "--retain-as-published": args.retain_as_published,
        "--retain-handling": args.retain_handling is not None,
    }
    return [flag for flag, given in flags.items() if given]


def subscription_options(args: Namespace) -> int:
    """The options byte of a subscription, which below level 5 is its QoS [5: 3.8.3.1]."""
    handling = RETAIN_HANDLING[args.retain_handling or "always"]
    return int(args.qos | args.no_local << 2 | args.retain_as_published << 3 | handling << 4)


def writer(args: Namespace) -> "Piece":
    """The output format; without -F as mosquitto_sub, which prints an empty payload as nothing."""
    end = b"" if args.no_eol else b"\n"
    if args.format is not None:
        line = compile_format(args.format)
        return lambda message, now: line(message, now) + end
    if args.verbose:
        full, empty = compile_format("%t %p"), compile_format("%t (null)")
        return lambda message, now: (full if message.payload else empty)(message, now) + end
    return lambda message, now: message.payload + end if message.payload else b""


class Subscriber:
    """One run of `flockmq sub`."""

    def __init__(self, args: Namespace, options: "Options") -> None:
        from ..client.client import Client

        self._args = args
        self._client = Client(options, on_packet=print_packet if args.debug else None)
        self._level = options.level
        self._left = args.count  # messages still to print; None = no limit
        self._unacknowledged: list[Publish] = []

    async def run(self) -> int:
        """Print until a signal or the end; returns the exit status. Raises ClientError."""
        work = asyncio.create_task(self._work())
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            work.cancel()

        for number_ in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number_, stop)
        try:
            async with asyncio.timeout(self._args.timeout):
                await work
        except TimeoutError:
            if not self._args.quiet:
                warn("timed out")
            return TIMED_OUT
        except asyncio.CancelledError:
            if not stopped:
                raise
        finally:
            self._flush()
            await self._client.disconnect(properties=self._args.properties.get("disconnect"))
        return 0

    async def _work(self) -> None:
        await self._client.connect()
        while True:
            try:
                await self._subscribe()
                if self._args.exit_on_subscribed:
                    return
                await self._print_messages()
                return
            except ConnectionLostError as error:
                self._flush()
                if error.reason_code in FINAL:
                    raise
                await self._reconnect(error)

    async def _subscribe(self) -> None:
        args = self._args
        if args.unsubscribed:
            unsuback = await self._client.unsubscribe(args.unsubscribed, args.properties.get("unsubscribe"))
            self._report("unsubscribe from", args.unsubscribed, unsuback)
        if args.topics:
            options = subscription_options(args)
            suback = await self._client.subscribe(
                [(topic, options) for topic in args.topics], args.properties.get("subscribe")
            )
            if self._report("subscribe to", args.topics, suback) == len(args.topics):
                raise ClientError(self._refusals("subscribe to", args.topics, suback))

    def _report(self, action: str, topics: list[str], reply: "Subscribed | Unsubscribed") -> int:
        """Warn of the filters that were refused; returns their number."""
        refused = sum(code >= REFUSED for code in reply.reason_codes)
        if 0 < refused < len(topics) and not self._args.quiet:
            warn(f"warning: {self._refusals(action, topics, reply)}")
        return refused

    def _refusals(self, action: str, topics: list[str], reply: "Subscribed | Unsubscribed") -> str:
        """The filters that were refused, at level 5 with the reasons."""
        from ..._speedups.protocol.client_events import reason_name

        refused = [(topic, code) for topic, code in zip(topics, reply.reason_codes, strict=False) if code >= REFUSED]
        if self._level < 5:
            return f"the broker refused to {action} {', '.join(topic for topic, _ in refused)}"
        names = ", ".join(f"{topic} ({reason_name(code)})" for topic, code in refused)
        reason = reply.properties.get("reason_string")
        return f"the broker refused to {action} {names}{f': {reason}' if reason else ''}"

    async def _reconnect(self, error: FlockError) -> None:
        """Connect again; delays double, with jitter so that many clients spread."""
        delay = FIRST_DELAY
        while True:
            wait = delay * random.uniform(0.5, 1)
            if not self._args.quiet:
                warn(f"{error}; trying again in {wait:.1f} s")
            await asyncio.sleep(wait)
            delay = min(delay * 2, LAST_DELAY)
            try:
                await self._client.connect()
                return
            except ConnectRefusedError as refused:
                if refused.return_code not in PASSING:
                    raise
                error = refused
            except ClientError as failed:
                error = failed

    async def _print_messages(self) -> None:
        """Print until the count is reached, or at the first live message with --retained-only."""
        args = self._args
        while True:
            message = await self._client.receive(acknowledge=False)
            if args.retained_only and not message.retain:
                return
            if self._is_wanted(message):
                sys.stdout.buffer.write(args.write(message, time.time_ns()))
                if self._left is not None:
                    self._left -= 1
            self._unacknowledged.append(message)
            if self._left == 0:
                return
            if not self._client.waiting or len(self._unacknowledged) >= FLUSH_EVERY:
                self._flush()

    def _is_wanted(self, message: "Publish") -> bool:
        from ..._speedups.codec.topics import matches

        if self._args.no_retained and message.retain:
            return False
        return not any(matches(hidden, message.topic_name) for hidden in self._args.hidden)

    def _flush(self) -> None:
        sys.stdout.buffer.flush()
        for message in self._unacknowledged:
            self._client.acknowledge(message)
        self._unacknowledged.clear()
