"""`flockmq sample-config`: a commented configuration file with every key."""

from ..config.sample import sample
from .parser import Parser


def run(arguments: list[str]) -> int:
    """Print the sample."""
    parser = Parser(
        "sample-config", "Print a commented TOML file with every key.", "", "  flockmq sample-config > flockmq.toml"
    )
    parser.add_general_help(parser.add_argument_group("options"))
    parser.parse(arguments)
    print(sample(), end="")
    return 0
