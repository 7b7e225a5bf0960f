"""`flockmq import`: makes a configuration out of a mosquitto.conf."""

import tempfile
from pathlib import Path

from broker.commands.parser import Parser
from broker.config.load import load
from broker.config.mosquitto import translate

EXAMPLES = """\
  flockmq import /etc/mosquitto/mosquitto.conf > flockmq.toml
  flockmq check-config --config flockmq.toml

Listeners, TLS, users, rules, limits, the store and bridges become keys of FlockMQ. Lines without a counterpart are
comments at the end. Files of users and rules are used as they are. Sessions and retained messages are not imported."""


def run(arguments: list[str]) -> int:
    """Print the configuration; an error raises ConfigError."""
    parser = Parser("import", "Make a configuration out of a mosquitto.conf.", "FILE [OPTION...]", EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="a mosquitto.conf")
    parser.add_general_help(parser.add_argument_group("general"))
    text = translate(Path(parser.parse(arguments).file))
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as made:  # what is printed can be loaded
        made.write(text)
        made.flush()
        load({}, {}, made.name)
    print(text, end="")
    return 0
