"""`flockmq import`: makes a configuration out of a mosquitto.conf, and brings the state in a mosquitto.db."""

import sys
import tempfile
from pathlib import Path

from ...broker.commands.parser import Parser
from ...broker.config.load import load
from ...broker.config.mosquitto import translate
from ...broker.config.mosquitto_directives import OPENS
from ...broker.errors import UsageError
from ..migration.endpoints import MOSQUITTO
from ..migration.mosquitto_file import MAGIC
from .imported_files import reports
from .migrate import add_options, add_source_options, move

EXAMPLES = """\
  flockmq import /etc/mosquitto/mosquitto.conf > flockmq.toml
  flockmq check-config --config flockmq.toml
  flockmq import /var/lib/mosquitto/mosquitto.db sqlite:flockmq.db --config flockmq.toml
  flockmq import /var/lib/mosquitto/mosquitto.db redis://10.0.0.5:6379

A mosquitto.conf: listeners, TLS, users, rules, limits, the store and bridges become keys of FlockMQ.
Lines without a counterpart are comments at the end; if the loss of one opens something, nothing is
made unless `--accept` names it. Files of users and rules are used as they are: a report on standard
error says whether they, and the certificates, can be read.

A mosquitto.db: sessions, subscriptions, queued messages, messages in flight and retained messages are
written to an empty store. Stop Mosquitto first: it writes the file as it ends. The file stays as it is."""


def run(arguments: list[str]) -> int:
    """Print the configuration, or write the store; an error raises FlockError."""
    parser = Parser("import", "Take over a configuration or the state of Mosquitto.", "FILE [TO] [OPTION...]", EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="a mosquitto.conf, or a mosquitto.db of Mosquitto 1.4 to 2.1")
    parser.add_argument(
        "target", metavar="TO", nargs="?", help="of a mosquitto.db: sqlite:PATH, or the URL of Redis; it has no state"
    )
    parser.add_argument_group("option of a mosquitto.conf").add_argument(
        "--accept",
        metavar="NAME",
        action="append",
        default=[],
        help="import it without this directive, though its loss opens something; may stand several times",
    )
    group = parser.add_argument_group("options of a mosquitto.db")
    add_source_options(group)
    add_options(group)
    parser.add_general_help(parser.add_argument_group("general"))
    args = parser.parse(arguments)
    path = Path(args.file)
    if is_state(path):
        if args.target is None:
            raise UsageError(f"{path} has state: name the store that gets it", f"flockmq import {path} sqlite:PATH")
        return move(f"{MOSQUITTO}{path}", args)
    if args.target is not None:
        raise UsageError(f"{path} is no mosquitto.db: only that has state for a store")
    text, losses, warnings = translate(path, accepted(args.accept))
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as made:  # the output can be loaded
        made.write(text)
        made.flush()
        config = load({}, {}, made.name)
    warned = [*(f"lost: {loss}" for loss in losses), *warnings]
    for sentence, is_warning in (*((each, True) for each in warned), *reports(config, losses)):
        print(f"flockmq: {'warning: ' * is_warning}{sentence}", file=sys.stderr)
    print(text, end="")
    return 0


def accepted(names: list[str]) -> list[str]:
    """The names of `--accept`. Raises UsageError."""
    for name in names:
        if name not in OPENS:
            raise UsageError(f"--accept {name}: its loss opens nothing", f"it may be {', '.join(OPENS)}")
    return names


def is_state(path: Path) -> bool:
    """Whether this is a mosquitto.db; a damaged one still has its name."""
    if path.suffix == ".db":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # `translate` reports it
