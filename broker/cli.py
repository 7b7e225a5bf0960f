"""The command `flockmq`: finds the subcommand, runs it, turns exceptions into one line and an exit status.

Exit status: 0 done, 1 failed, 2 the command line or the configuration is wrong. This module imports nothing heavy, and
each subcommand only when it is called, so that `--help` and mistakes return at once.
"""

import sys
from importlib import import_module
from keyword import iskeyword

from .errors import ConfigError, FlockError, UsageError, fail, nearest
from .version import DOCUMENTATION, commit, version

COMMANDS = {
    "serve": "start a node (the default command)",
    "check-config": "print the effective configuration and the origin of each value",
    "audit": "list the weaknesses of a configuration",
    "passwd": "write a user and the hash of a password into a password file",
    "sample-config": "print a commented configuration file with every key",
    "token": "a token for the HTTP API and the web page",
    "pub": "publish messages, like mosquitto_pub",
    "sub": "subscribe and print messages, like mosquitto_sub",
    "cluster": "`cluster status`: the nodes of a cluster and their state in Redis",
    "session": "`session show|kick|purge CLIENT_ID`: one session of a cluster",
    "users": "users in the store, changed while nodes run: passwords, rules, roles",
    "roles": "roles in the store: named rules of access, and general rules",
    "import": "take over a configuration of Mosquitto, and its state",
    "migrate": "move all state of a stopped broker from SQLite to Redis, or back",
    "backup": "all state of a running node or cluster in one file",
    "restore": "the state of a backup, in a new place",
    "analytics": "`analytics run|sql|report|package`: every message, queryable with Spark SQL",
    "lake": "every message as a row of a Delta or Iceberg table",
    "connect": "messages to PostgreSQL, Kafka, InfluxDB, ClickHouse, webhooks, topics",
    "schema": "`schema infer`: the JSON Schema of logged payloads",
    "replay": "publish logged messages again",
    "trace": "follow a message: each step of it, over all nodes",
    "drain": "move the clients of a node to other nodes",
    "clients": "clients and sessions: list, show, disconnect, end",
    "request": "a message to one client, and its response",
    "groups": "shared subscriptions: their subscribers, and the messages that wait",
    "delayed": "delayed messages that wait: list and cancel",
    "limits": "how full each limit of a broker is, and what happens when it is reached",
    "doctor": "the health of a running broker: what may fail next, and its remedy",
    "links": "links to other brokers: their state, and the messages that wait",
    "bench": "measure a broker: speed, and loss of messages",
    "prove": "kill, stop and cut off a broker under load, and judge what its clients saw",
}
# Commands of other packages, imported by name only: they need libraries that one node doesn't.
ELSEWHERE = {
    "cluster": "cluster",
    "session": "cluster",
    "import": "cluster",
    "migrate": "cluster",
    "backup": "cluster",
    "restore": "cluster",
    "analytics": "cluster",
    "lake": "cluster",
    "connect": "cluster",
    "schema": "cluster",
    "replay": "cluster",
    "bench": "loadtest",
    "prove": "loadtest",
}
HELP = """\
usage: flockmq [COMMAND] [OPTION...]

An MQTT 3.1, 3.1.1 and 5.0 broker, two clients, and a load generator.

commands:
{commands}

  -h, --help   this page; `flockmq COMMAND --help` explains one command
  --version    the version

examples:
  flockmq                                      listen on localhost:1883, keep state in ./flockmq.db
  flockmq passwd passwords ada                 make a user
  flockmq serve --listen :1883 --password-file passwords    accept other machines
  flockmq sub -t 'sensors/#' -v                watch a subtree
  flockmq pub -t sensors/1 -m 21.5 -q 1 -r     publish a retained message
  flockmq sample-config > flockmq.toml         start a configuration file
  flockmq serve --config flockmq.toml          and use it
  flockmq cluster status --redis redis://host  list the nodes

documentation: {documentation}
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (the process's own unless given); returns the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        status = run(arguments)
        if sys.stdout is not None:  # the parent may have closed it
            sys.stdout.flush()  # here, where a closed pipe causes no traceback
        return status
    except (UsageError, ConfigError) as error:
        return fail(error, 2)
    except FlockError as error:
        return fail(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # The reader of the output has ended: `flockmq sub ... | head`.
        silence_stdout()
        return 141
    except SystemExit as stop:  # argparse ends --help this way.
        return int(stop.code or 0)


def run(arguments: list[str]) -> int:
    """Run the command line; raises the errors that `main` prints."""
    first = arguments[0] if arguments else "serve"
    if first == "help" and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
        first = arguments[0]
    if first in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
        print(HELP.format(commands=commands, documentation=DOCUMENTATION), end="")
        return 0
    if first in ("--version", "version"):
        print(f"flockmq {version()}" + (f" (commit {commit()})" if commit() else ""))
        return 0
    if first.startswith("-"):
        arguments = ["serve", *arguments]
    elif first not in COMMANDS:
        near = nearest(first, COMMANDS)
        hint = f"did you mean {near}?" if near else "`flockmq --help` lists the commands"
        raise UsageError(f"unknown command {first!r}", hint)
    name, *rest = arguments or ["serve"]
    package = ELSEWHERE.get(name, "broker")
    module = import_module(f"flockmq.{package}.commands.{name.replace('-', '_')}{'_' if iskeyword(name) else ''}")
    return int(module.run(rest))


def silence_stdout() -> None:
    """Point standard output at /dev/null, so that the interpreter's last flush cannot fail."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
