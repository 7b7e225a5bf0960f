"""Prints the section of a version in CHANGELOG.md: the notes of its release. `release_notes.py 0.1.0`."""

import re
import sys
from pathlib import Path


def notes(changelog: str, version: str) -> str:
    """The text below the heading of a version. Raises SystemExit: there is none, or it is not released."""
    found = re.search(rf"^## {re.escape(version)}(.*)\n((?:(?!## ).*\n?)*)", changelog, re.M)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section {version}")
    if "unreleased" in found[1]:
        raise SystemExit(f"CHANGELOG.md says that {version} is unreleased: write the date")
    return found[2].strip() + "\n"


if __name__ == "__main__":
    print(notes((Path(__file__).parents[1] / "CHANGELOG.md").read_text("utf-8"), sys.argv[1]), end="")
