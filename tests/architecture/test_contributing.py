"""The newcomer's list of CONTRIBUTING names files that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "_speedups|broker|cluster|deploy|loadtest|tests"


def test_paths_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    paths = re.findall(rf"`((?:{PACKAGES})/[\w/.-]*)`", text)
    assert len(paths) > 80
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_each_folder_of_tests_is_named() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("\n## Tests\n")[2].partition("\n## ")[0]
    folders = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if any(path.glob("**/*.py"))}
    assert folders == set(re.findall(r"`(tests/\w+)`", table))


def test_there_are_thirty_changes() -> None:
    table = (
        (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| I want to change or add |")[2].partition("\n\n")[0]
    )
    assert table.count("\n") - 1 >= 30
