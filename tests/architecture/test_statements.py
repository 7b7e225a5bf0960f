"""Every normative statement of MQTT 3.1.1 and of 5.0 is cited where it is kept or tried, or has a reason why not.

Statements of 5.0 are cited as `[5: MQTT-3.3.1-9]`.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATEMENTS = ROOT / "tests" / "cases" / "statements.txt"
STATEMENTS_5 = ROOT / "tests" / "cases" / "statements_5.txt"
STATEMENT = re.compile(r"(?<!5: )\bMQTT-\d+\.\d+\.\d+-\d+\b")
STATEMENT_5 = re.compile(r"\b5: (MQTT-\d+\.\d+\.\d+-\d+)\b")
CITED_IN = ("_speedups", "broker", "cluster", "loadtest", "tests")
SOURCES = {".py", ".pyx", ".pxd", ".pyi", ".toml", ".lua"}


def statements(file: Path) -> dict[str, str]:
    """The reasons of all statements; empty where one is to be cited."""
    lines = [line for line in file.read_text("utf-8").splitlines() if line and line[0] != "#"]
    return {name: reason for name, _, reason in (line.partition(" ") for line in lines)}


def citations(statement: re.Pattern[str]) -> set[str]:
    """All statements that sources and tests cite."""
    return {
        name
        for folder in CITED_IN
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SOURCES and "node_modules" not in path.parts
        for name in statement.findall(path.read_text("utf-8"))
    }


LISTS = pytest.mark.parametrize(("file", "statement"), [(STATEMENTS, STATEMENT), (STATEMENTS_5, STATEMENT_5)], ids="45")


@LISTS
def test_every_statement_is_cited_or_has_a_reason(file: Path, statement: re.Pattern[str]) -> None:
    missing = {name for name, reason in statements(file).items() if not reason.strip()}
    assert missing <= citations(statement), sorted(missing - citations(statement))


@LISTS
def test_what_is_cited_is_a_statement(file: Path, statement: re.Pattern[str]) -> None:
    assert citations(statement) <= statements(file).keys(), sorted(citations(statement) - statements(file).keys())


@LISTS
def test_files_that_reasons_name_are_there(file: Path, statement: re.Pattern[str]) -> None:
    for name, reason in statements(file).items():
        for path in re.findall(r"(?:tests|_speedups)/[\w/.]+\w", reason):
            assert (ROOT / path).exists(), f"{name} names {path}"
