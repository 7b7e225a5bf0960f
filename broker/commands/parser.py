"""The argument parser of all subcommands: errors are one line, and help keeps the layout of its examples."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from ..errors import UsageError, nearest


class Parser(argparse.ArgumentParser):
    """An ArgumentParser of `flockmq COMMAND`; a wrong command line raises UsageError."""

    def __init__(self, command: str, description: str, usage: str, examples: str) -> None:
        super().__init__(
            prog=f"flockmq {command}",
            description=description,
            usage=f"flockmq {command} {usage}".rstrip(),
            epilog=f"examples:\n{examples.rstrip()}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=100),
            add_help=False,
            allow_abbrev=False,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The parsed command line; an unknown flag is reported with the nearest one. Raises UsageError."""
        args, unknown = self.parse_known_args(arguments)
        if unknown:
            near = nearest(unknown[0].partition("=")[0], self._option_string_actions)
            if not near and "--config" in self._option_string_actions and unknown[0].endswith(".toml"):
                near = f"--config {unknown[0]}"
            hint = f"did you mean {near}?" if near else f"`{self.prog} --help` explains"
            raise UsageError(f"unknown argument {unknown[0]!r}", hint)
        return args

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"`{self.prog} --help` explains")

    def add_general_help(self, group: argparse._ArgumentGroup) -> None:
        """Add `--help` to this group, and `-h`, if that is not the host of a client."""
        flags = ["--help"] if "-h" in self._option_string_actions else ["-h", "--help"]
        group.add_argument(*flags, action="help", help="this page")
