"""Sources that ruff does not read have lines of at most 120 columns, too."""

import pytest

from tests.architecture.test_docs import ROOT, tracked

COLUMNS = 120


@pytest.mark.parametrize("pattern", ["*.pyx", "*.pxd", "*.lua"])
def test_lines_are_short(pattern: str) -> None:
    files = tracked(pattern)
    assert files
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not long, f"lines of more than {COLUMNS} columns: {', '.join(long)}"
