"""The options added to locust's: on the command line, in its configuration file, as variables, in its web form."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from . import credentials, hosts
from .scenario import Scenario, ScenarioError, Thresholds, names, parse, read
from .thresholds import with_changes


def add_to(parser: Any) -> None:
    """Add them to locust's parser."""
    parser.add_argument(  # locust's form lacks the options of groups
        "--scenario",
        type=checked(lambda name: parse(read(name), name)),
        default="fleet",
        env_var="FLOCKMQ_SCENARIO",
        metavar="NAME-OR-FILE",
        help=f"one of {', '.join(names())}, or a file (default: fleet); sets the number of users, too",
    )
    parser.add_argument(
        "--thresholds",
        type=checked(lambda text: with_changes(Thresholds(), text)),
        default="",
        env_var="FLOCKMQ_THRESHOLDS",
        metavar="NAME=MAX,...",
        help='replace the scenario\'s: "lost=0, disconnected=any, deliver qos1 p99=500ms"; exit status 1 if exceeded',
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=(4, 5),
        default=4,
        env_var="FLOCKMQ_LEVEL",
        help="protocol level of all clients: 4 is MQTT 3.1.1, 5 is MQTT 5.0",
    )
    parser.add_argument(
        "--username",
        default="",
        env_var="FLOCKMQ_USERNAME",
        metavar="USER",
        help="of all clients; without it they send no credentials",
    )
    parser.add_argument(
        "--password-file",
        type=checked(credentials.password),
        default="",
        env_var="FLOCKMQ_PASSWORD_FILE",
        metavar="FILE",
        help="its first line is the password; each worker reads its own",
    )
    parser.add_argument(
        "--source",
        type=checked(hosts.sources),
        default="",
        env_var="FLOCKMQ_SOURCE",
        metavar="ADDRESS,...",
        help="local addresses of clients, in turn, for more connections than one address has ports: 127.0.1.0/24",
    )


def checked(read_it: Any) -> Any:
    """A type for argparse that checks the text and keeps it."""

    def check(text: str) -> str:
        try:
            read_it(text)
        except (ScenarioError, ValueError) as error:
            raise ArgumentTypeError(str(error)) from None
        return text

    return check


def chosen(options: Any) -> Scenario:
    """The scenario of the options; they carry its text to workers, which need not have the file."""
    options.scenario_text = read(options.scenario)
    return parse(options.scenario_text, options.scenario)
