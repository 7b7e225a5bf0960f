"""`flockmq mcp`: a broker for agents, by the Model Context Protocol over standard input and output."""

import signal
from argparse import Namespace

from ..errors import FlockError
from .http_api import add_api_options, parse
from .parser import Parser

EXAMPLES = """\
  flockmq mcp --url https://broker.example.com:8080 --token-file viewer-key
  flockmq mcp --token-file operator-key --write       # tools that publish, each with a dry run first

In the configuration of an agent: {"mcpServers": {"broker": {"command": "flockmq", "args": ["mcp", "--token-file",
"/home/ann/viewer-key"]}}}. An agent may do what its token or API key may do, and no more: give it a key of its own,
with the role viewer or with scopes. The audit log of the broker has each use of a tool."""


def run(arguments: list[str]) -> int:
    """Serve until the agent closes a pipe; returns the exit status."""
    parser = Parser("mcp", "A broker for agents (Model Context Protocol).", "[OPTION...]", EXAMPLES)
    parser.add_argument("--write", action="store_true", help="also tools that publish messages [only tools that read]")
    add_api_options(parser)
    args: Namespace = parse(parser, arguments)
    try:
        from .mcp_server import make_server
    except ModuleNotFoundError as error:
        raise FlockError(f"the package {error.name} is not installed", "pip install 'flockmq[mcp]'") from None
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an exception would wait for the next line of standard input
    try:
        make_server(args, writes=args.write).run()
    except* BrokenPipeError:
        pass  # the agent has ended
    return 0
