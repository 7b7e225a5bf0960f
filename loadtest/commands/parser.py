"""The argument parser of `flockmq bench` and `flockmq prove`, which behaves as the parsers of the broker's commands
do."""

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line; its help has a short usage, and the layout of its examples."""

    def __init__(self, command: str, description: str, usage: str, examples: str) -> None:
        super().__init__(
            prog=f"flockmq {command}",
            description=description,
            usage=f"flockmq {command} {usage}",
            epilog=examples,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=100),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        print(f"flockmq: error: {message}; `{self.prog} --help` explains", file=sys.stderr)
        raise SystemExit(2)
