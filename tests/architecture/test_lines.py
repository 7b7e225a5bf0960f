"""Sources and pages that ruff does not read have lines of at most 120 columns, too."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_docs import ROOT, tracked

COLUMNS = 120


def long_lines(path: Path) -> Iterator[int]:
    """The numbers of lines that are too long; rows of tables and code blocks of pages may be."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        text = re.sub(r"^```.*?^```|^\|.*?$", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    yield from (number for number, line in enumerate(text.splitlines(), 1) if len(line) > COLUMNS)


@pytest.mark.parametrize("pattern", ["*.pyx", "*.pxd", "*.lua", "*.md"])
def test_lines_are_short(pattern: str) -> None:
    files = tracked(pattern)
    assert files
    long = [f"{path.relative_to(ROOT)}:{number}" for path in files for number in long_lines(path)]
    assert not long, f"lines of more than {COLUMNS} columns: {', '.join(long)}"


def test_long_lines_of_a_page_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    long = "a" * (COLUMNS + 1)
    page.write_text(f"# Page\n\n{long}\n\n| {long} |\n\n```\n{long}\n```\n\n{long}\n")
    assert list(long_lines(page)) == [3, 11]
