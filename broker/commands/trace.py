"""`flockmq trace`: each step of messages, at all nodes, as it happens."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..errors import FlockError, UsageError
from .http_api import add_api_options, parse, response
from .parser import Parser

SILENT_SECONDS = 30.0  # a node sends an event every second, even an empty one
WORDS = {
    "received": "received from",
    "stored": "stored for",
    "answered": "answered to",
    "retained": "retained",
    "forwarded": "forwarded to node",
    "queued": "queued for",
    "sent": "sent to",
    "acknowledged": "acknowledged by",
    "dropped": "DROPPED for",
}
EXAMPLES = """\
  flockmq trace --topic 'site/7/#'
  flockmq trace --client pump-12 --url https://broker.example.org:8080 --token-file token
  flockmq trace --topic '#' --json | jq 'select(.step == "dropped")'

A node needs `--http HOST:PORT`; any node of a cluster traces all nodes. Each line: time, node, name of the message
(the same for the same topic and payload), step, topic, bytes of the payload, QoS."""


def run(arguments: list[str]) -> int:
    """Print steps until interrupted; returns the exit status."""
    parser = Parser("trace", "Follow messages through the broker.", "--client ID | --topic FILTER ...", EXAMPLES)
    parser.add_argument("--client", metavar="ID", help="messages from and to this client")
    parser.add_argument("--topic", metavar="FILTER", help="messages that this topic filter matches")
    add_api_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--count", "-C", metavar="N", type=int, help="end after so many steps")
    args = parse(parser, arguments)
    if args.client is None and args.topic is None:
        raise UsageError("trace needs a client id or a topic filter", "give --client ID or --topic FILTER")
    left = args.count
    for step in steps(args):
        print(json.dumps(step) if args.json else line(step), flush=True)
        left = None if left is None else left - 1
        if left == 0:
            break
    return 0


def steps(args: Namespace) -> Iterator[dict[str, Any]]:
    """Each step that the node sends; on standard error, the start, and the number of missed steps.

    Raises:
        FlockError: the node does not answer, or refuses.
    """
    wanted = {name: value for name in ("client", "topic") if (value := getattr(args, name)) is not None}
    with response(args, "/trace", wanted, timeout=SILENT_SECONDS) as events:
        first = True
        for event in events:
            if event.startswith(b"data: "):
                sent = json.loads(event[6:])
                if first:
                    print("following; Ctrl-C ends it", file=sys.stderr, flush=True)
                    first = False
                if sent["missed"]:
                    print(f"{sent['missed']} steps were missed: too many at a time", file=sys.stderr, flush=True)
                yield from sent["steps"]
    raise FlockError(f"{args.url} has ended the connection", "has the node stopped?")


def line(step: dict[str, Any]) -> str:
    """A step as a line of text."""
    when = datetime.fromtimestamp(step["time"]).strftime("%H:%M:%S.%f")[:-3]
    client = f" {step['client']}" if step["client"] else ""
    detail = f" ({step['detail']})" if step["detail"] else ""
    words = WORDS.get(step["step"], step["step"])  # a node of a later version may send further steps
    words = words if client else words.removesuffix(" for")
    text = (
        f"{when} {step['node']} {step['message']} {words}{client}{detail}: {step['topic']}, {step['size']} bytes, "
        f"QoS {step['qos']}"
    )
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
