"""`flockmq pub`: publish messages, compatible with mosquitto_pub."""

import asyncio
import os
import sys
import threading
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ..errors import ClientError, UsageError
from .client_flags import (
    add_client_options,
    apply_url,
    check_topic_name,
    client_options,
    encoded,
    number,
    parse,
    print_packet,
    seconds,
)
from .parser import Parser

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.options import Options

PAYLOAD_MAX = 268_435_455 - 2 - 2  # bytes beside the shortest topic name and a packet identifier
EXAMPLES = """\
  flockmq pub -t sensors/1 -m 21.5
  flockmq pub -t sensors/1 -m 21.5 -q 1 -r           retained, acknowledged
  flockmq pub -t sensors/1 -n -r                     clear the retained message
  tail -f values.txt | flockmq pub -t values -l      one message for each line
  flockmq pub -t ask -m 7 -D publish response-topic answers -D publish correlation-data 1
  flockmq pub -t news -m hello -q 1 -D publish message-expiry-interval 60 -D publish user-property lang en
  flockmq pub -L mqtt://user:secret@broker.example/pictures -f cat.jpg

exit status: 0 published (QoS 1 and 2: acknowledged), 1 not published, 2 wrong usage."""


def run(arguments: list[str]) -> int:
    """Publish by the arguments; returns the exit status."""
    parser = Parser(
        "pub", "Publish one message, or many.", "-t TOPIC {-m TEXT | -n | -f FILE | -s | -l} [OPTION...]", EXAMPLES
    )
    group = parser.add_argument_group("message")
    group.add_argument("-t", "--topic", help="topic name to publish to")
    group.add_argument("-m", "--message", metavar="TEXT", help="the payload")
    group.add_argument("-n", "--null-message", action="store_true", help="an empty payload")
    group.add_argument("-f", "--file", metavar="FILE", help="the payload is this file's content")
    group.add_argument("-s", "--stdin-file", action="store_true", help="the payload is all of standard input")
    group.add_argument("-l", "--stdin-line", action="store_true", help="one message for each line of standard input")
    group.add_argument("-q", "--qos", type=number(0, 2), default=0, help="0, 1 or 2 [0]")
    group.add_argument("-r", "--retain", action="store_true", help="the broker keeps the message for later subscribers")
    group.add_argument("--repeat", type=number(1, 999_999_999), default=1, metavar="N", help="publish it N times [1]")
    group.add_argument("--repeat-delay", type=seconds, default=0.0, metavar="SECONDS", help="and wait in between [0]")
    group.add_argument(
        "-M", "--max-inflight", type=number(1, 65535), default=20, metavar="N", help="unacknowledged at a time [20]"
    )
    add_client_options(parser)
    args = parse(parser, arguments)
    topic = apply_url(args)
    if topic is not None:
        args.topic = topic
    if args.topic is None:
        raise UsageError("no topic", "give one with -t, or -L")
    check_topic_name(args.topic, "-t")
    options = client_options(args, "pub", max_inflight=args.max_inflight)
    try:
        payload = fixed_payload(args)
        asyncio.run(publish_all(args, options, payload))
    except ClientError:
        if args.quiet:
            return 1
        raise
    return 0


def fixed_payload(args: Namespace) -> bytes | None:
    """The payload, or None when every line is one. Raises UsageError, ClientError."""
    given = [args.message is not None, args.null_message, args.file is not None, args.stdin_file, args.stdin_line]
    if sum(given) != 1:
        raise UsageError("no message" if not any(given) else "more than one message", "give one of -m, -n, -f, -s, -l")
    if args.stdin_line:
        if args.repeat != 1:
            raise UsageError("--repeat and -l exclude each other")
        return None
    if args.null_message:
        return b""
    if args.message is not None:
        payload = encoded(args.message)
    elif args.stdin_file:
        payload = sys.stdin.buffer.read()
    else:
        try:
            with open(args.file, "rb") as file:
                payload = file.read(PAYLOAD_MAX + 1)
        except OSError as error:
            raise ClientError(f"cannot read {args.file}: {error.strerror}") from None
    if len(payload) > PAYLOAD_MAX:
        raise ClientError(f"the message is longer than MQTT allows, {PAYLOAD_MAX} bytes")
    return payload


async def publish_all(args: Namespace, options: "Options", payload: bytes | None) -> None:
    """Connect, publish, wait for the acknowledgements, disconnect. Raises ClientError."""
    from ..client.client import Client

    async with Client(options, on_packet=print_packet if args.debug else None) as client:
        payloads = lines_of_stdin() if payload is None else repeated(payload, args.repeat, args.repeat_delay)
        work = asyncio.create_task(publish_each(client, args, payloads))
        lost = asyncio.create_task(client.wait_lost())  # else a loss would show only at the next line
        await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if not work.done() and not client.connected:
            work.cancel()
            await client.receive()  # raises the reason
        await work
        await client.disconnect(properties=args.properties.get("disconnect"))


async def publish_each(client: "Client", args: Namespace, payloads: AsyncIterator[bytes]) -> None:
    """Publish each payload, the window full at all times; returns when all are acknowledged."""
    pending: set[asyncio.Future[None]] = set()
    properties = args.properties.get("publish", {})
    topic = args.topic
    async for payload in payloads:
        done = await client.start_publish(topic, payload, args.qos, args.retain, properties)
        if "topic_alias" in properties:
            topic = ""  # the alias stands for it from the second message on
        if not done.done():
            pending.add(done)
            done.add_done_callback(pending.discard)
    if pending:
        await asyncio.gather(*pending)


async def repeated(payload: bytes, times: int, delay: float) -> AsyncIterator[bytes]:
    """`payload`, `times` times."""
    for index in range(times):
        if delay and index:
            await asyncio.sleep(delay)
        yield payload


async def lines_of_stdin() -> AsyncIterator[bytes]:
    """The lines of standard input without their ends, each as soon as it is read."""
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        # A daemon thread on the bare descriptor: it may block in read at exit, and must hold no lock then.
        chunk = b"?"
        while chunk:
            try:
                chunk = os.read(descriptor, 65536)
            except OSError:
                chunk = b""
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, asyncio.CancelledError):  # The loop has ended before the input.
                return

    threading.Thread(target=read, daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
