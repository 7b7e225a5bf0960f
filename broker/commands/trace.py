"""`flockmq trace`: each step of messages, at all nodes, as it happens."""

import json
import sys
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit

from broker.commands.parser import Parser
from broker.errors import FlockError, UsageError

DEFAULT = "http://127.0.0.1:8080"
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
    parser.add_argument("--url", default=DEFAULT, help=f"of a node's HTTP port [{DEFAULT}]")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="file with a token of `flockmq token`")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--count", "-C", metavar="N", type=int, help="end after so many steps")
    parser.add_general_help(parser.add_argument_group("general"))
    args = parser.parse(arguments)
    if args.client is None and args.topic is None:
        raise UsageError("trace needs a client id or a topic filter", "give --client ID or --topic FILTER")
    if urlsplit(args.url).scheme not in ("http", "https"):
        raise UsageError(f"--url {args.url!r} is no HTTP URL", f"such as {DEFAULT}")
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
    request = urllib.request.Request(f"{args.url.rstrip('/')}/api/v1/trace?{urlencode(wanted)}")
    if args.token_file is not None:
        request.add_header("Authorization", f"Bearer {args.token_file.read_text().strip()}")
    try:
        with urllib.request.urlopen(request, timeout=SILENT_SECONDS) as events:
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
    except HTTPError as error:
        raise FlockError(f"{args.url} refuses: {_reason(error)}", "see deploy/docs/HTTP.md about tokens") from error
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise FlockError(f"{args.url} does not answer: {reason}", "has the node --http 127.0.0.1:8080?") from error
    raise FlockError(f"{args.url} has ended the connection", "has the node stopped?")


def _reason(error: HTTPError) -> str:
    try:
        problem = json.loads(error.read())
        return str(problem.get("detail") or problem.get("title") or error.reason)
    except ValueError:
        return str(error.reason)


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
