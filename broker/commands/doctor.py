"""`flockmq doctor`: the health of a running broker on one page."""

import json
from argparse import Namespace
from typing import Any

from .. import logs
from ..doctor import SEVERITIES
from .http_api import add_api_options, ask, parse, print_failures
from .parser import Parser

EXAMPLES = """\
  flockmq doctor
  flockmq doctor --url https://broker.example.org:8080 --token-file token
  flockmq doctor --json > ticket.json

Each node examines itself, its machine, its store and its configuration: what may fail next, the worst first, with
its remedy. bad: it fails, or is about to. weak: one more fault, or more load, and it fails. note: for information.
The JSON has the configuration, too; passwords are masked.

exit status: 0 no result is bad, 1 a result is bad, or a node did not answer."""


def run(arguments: list[str]) -> int:
    """Print the results; returns the exit status."""
    parser = Parser("doctor", "The health of a running broker.", "[OPTION...]", EXAMPLES)
    parser.add_argument("--json", action="store_true", help="for machines and tickets")
    add_api_options(parser)
    args: Namespace = parse(parser, arguments)
    found = ask(args, "/doctor")
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        if found["cluster"]:
            show("the nodes together", found["cluster"])
        for node, results in sorted(found["nodes"].items(), key=lambda item: worst(item[1])):
            show(f"node {found['names'][node]} ({node})", results)
        print_failures(found["failures"])
    results = [found["cluster"], *found["nodes"].values()]
    return int(bool(found["failures"]) or any(result["severity"] == "bad" for part in results for result in part))


def worst(results: list[dict[str, Any]]) -> int:
    """Orders nodes: the node with the worst result is the first."""
    return min(SEVERITIES.index(result["severity"]) for result in results)


def show(title: str, results: list[dict[str, Any]]) -> None:
    """Print the results of a node."""
    print(logs.escaped(title))
    for result in results:
        print(f"  {result['severity']:4}  {result['check']}: {logs.escaped(result['finding'])}")
        if result["remedy"]:
            print(f"        -> {logs.escaped(result['remedy'])}")
