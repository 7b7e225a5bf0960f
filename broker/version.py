"""The version and the address of the documentation, once for all that show them."""

from functools import cache
from pathlib import Path

DOCUMENTATION = "https://flockmq.github.io/flockmq"  # as in pyproject.toml


@cache  # a heartbeat opens no file: there may be no descriptor left
def version() -> str:
    """The version of the installed package."""
    from importlib import metadata  # late: it costs as much as all other work of a command line with a mistake

    try:
        return metadata.version("flockmq")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def commit() -> str:
    """The commit that the package was built of; empty: it is not known, as in a folder of sources."""
    try:
        return Path(__file__).with_name("commit.txt").read_text("ascii").strip()
    except OSError:
        return ""
