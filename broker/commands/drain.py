"""`flockmq drain`: moves the clients of a node to other nodes."""

from argparse import Namespace
from urllib.parse import quote

from .. import logs
from ..errors import FlockError
from .http_api import add_api_options, ask, parse
from .parser import Parser

EXAMPLES = """\
  flockmq drain node-2 --url https://broker.example.org:8080 --token-file token
  flockmq drain node-2 --reference broker-3.example.org:1883

NODE is the name or the id of a node; any node of a cluster takes the request. The node is not ready from then on.
After `http.drain` it closes its clients, and takes none until it is restarted. Clients of MQTT 5.0 are sent to
the servers of --reference, or of mqtt.server_reference without the node itself: reason code 0x9C. Some clients
then never come back."""


def run(arguments: list[str]) -> int:
    """Drain a node; returns the exit status."""
    parser = Parser("drain", "Move the clients of a node to other nodes.", "NODE [OPTION...]", EXAMPLES)
    parser.add_argument("node", metavar="NODE", help="name or id")
    parser.add_argument(
        "--reference", metavar="HOST:PORT", action="append", default=[], help="another server; repeatable"
    )
    add_api_options(parser)
    args = parse(parser, arguments)
    node = find(args, args.node)
    body = {"reference": " ".join(args.reference)} if args.reference else {}
    references = ask(args, f"/nodes/{quote(node, safe='')}/drain", body)["references"]
    print(f"{logs.escaped(args.node)} is drained; MQTT 5.0 clients are sent to: {' '.join(references) or 'no server'}")
    return 0


def find(args: Namespace, name: str) -> str:
    """The id of a node.

    Raises:
        FlockError: no node has the name, or several have it.
    """
    nodes = ask(args, "/nodes")["nodes"]
    found = [name] if name in nodes else [node for node, said in nodes.items() if said["name"] == name]
    if len(found) != 1:
        names = ", ".join(f"{said['name']} ({node})" for node, said in sorted(nodes.items()))
        problem = "several nodes have the name" if found else "there is no node"
        raise FlockError(f"{problem} {name}", f"there are {logs.escaped(names)}")
    return found[0]
