"""`flockmq request`: a message to one client, without a subscription, and its response."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import UsageError, reason_of
from .http_api import add_api_options, parse, response
from .parser import Parser

EXAMPLES = """\
  flockmq request pump-17 pump-17/set -m on                      # wait for its acknowledgement
  flockmq request pump-17 pump-17/get -m state --response-topic pump-17/state   # print its response
  flockmq request pump-17 firmware -f image.bin --qos 2 --timeout 60

The client needs no subscription for the topic, but the right to read it. A client of MQTT 5.0 gets the response
topic and correlation data with the message, and its response must have that correlation data. A client of MQTT 3
must know the topic of the response; its next message to it is the response. The exit status is 1 if the client is
not connected, refuses the message, or the time is over; then a message that was not sent yet is dropped."""
MARGIN = 10.0  # seconds that the node may take beside the wait


def run(arguments: list[str]) -> int:
    """Send a message, and print the response; returns the exit status."""
    parser = Parser("request", "A message to one client, and its response.", "CLIENT_ID TOPIC [OPTION...]", EXAMPLES)
    parser.add_argument("client_id", metavar="CLIENT_ID", help="of a connected client")
    parser.add_argument("topic", metavar="TOPIC", help="of the message")
    payload = parser.add_mutually_exclusive_group()
    payload.add_argument("-m", "--message", metavar="TEXT", default="", help="payload [empty]")
    payload.add_argument("-f", "--file", metavar="FILE", type=Path, help="file with the payload")
    parser.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=1, help="[1]")
    parser.add_argument("-r", "--response-topic", metavar="TOPIC", help="topic of the response [it waits for none]")
    parser.add_argument("--wait", choices=("sent", "ack"), help="end of the wait without a response [ack; QoS 0: sent]")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=10.0, help="of the wait, at most 60 [10]")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    add_api_options(parser)
    args = parse(parser, arguments)
    if args.response_topic is not None and args.wait is not None:
        raise UsageError("--wait and --response-topic exclude each other", "a response ends the wait")
    try:
        data = args.message.encode("utf-8", "surrogateescape") if args.file is None else args.file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {args.file}: {reason_of(error)}", "-m TEXT gives a payload itself") from error
    body: dict[str, Any] = {
        "topic": args.topic,
        "payload": base64.b64encode(data).decode(),
        "encoding": "base64",
        "qos": args.qos,
        "timeout": args.timeout,
        "wait": args.wait or ("ack" if args.qos else "sent"),
    }
    if args.response_topic is not None:
        body |= {"wait": "response", "response_topic": args.response_topic}
    query = {"client_id": args.client_id}
    with response(args, "/client/message", query, body, timeout=args.timeout + MARGIN) as reply:
        found = json.loads(reply.read())
    if args.json:
        print(json.dumps(found))
    elif found["response"] is not None:
        answer = found["response"]
        text = answer["payload"]
        sys.stdout.buffer.write(text.encode() if answer["encoding"] == "text" else base64.b64decode(text))
        sys.stdout.buffer.flush()
        if sys.stdout.isatty():
            print()
    else:
        print(f"{found['outcome']} by the client" if found["outcome"] == "acknowledged" else "sent")
    return 0
