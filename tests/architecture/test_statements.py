"""Every normative statement of MQTT 3.1.1 is cited where it is kept or tried, or says why it is not.

Statements of 5.0 are cited as `[5: MQTT-3.3.1-9]`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATEMENTS = ROOT / "tests" / "cases" / "statements.txt"
STATEMENTS_5 = ROOT / "tests" / "cases" / "statements_5.txt"
STATEMENT = re.compile(r"(?<!5: )\bMQTT-\d+\.\d+\.\d+-\d+\b")
STATEMENT_5 = re.compile(r"\b5: (MQTT-\d+\.\d+\.\d+-\d+)\b")
CITED_IN = ("_speedups", "broker", "cluster", "loadtest", "tests")
SOURCES = {".py", ".pyx", ".pxd", ".pyi", ".toml", ".lua"}


def statements(file: Path = STATEMENTS) -> dict[str, str]:
    """The reasons of all statements; empty where one is to be cited."""
    lines = [line for line in file.read_text("utf-8").splitlines() if line and line[0] != "#"]
    return {name: reason for name, _, reason in (line.partition(" ") for line in lines)}


def citations(statement: re.Pattern[str] = STATEMENT) -> set[str]:
    """All statements that sources and tests cite."""
    return {
        name
        for folder in CITED_IN
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SOURCES and "node_modules" not in path.parts
        for name in statement.findall(path.read_text("utf-8"))
    }


def test_every_statement_is_cited_or_has_a_reason() -> None:
    missing = [name for name, reason in statements().items() if not reason.strip()]
    assert set(missing) <= citations(), sorted(set(missing) - citations())


def test_what_is_cited_is_a_statement() -> None:
    assert citations() <= statements().keys(), sorted(citations() - statements().keys())


def test_what_is_cited_of_5_is_a_statement() -> None:
    known = statements(STATEMENTS_5).keys()
    assert citations(STATEMENT_5) <= known, sorted(citations(STATEMENT_5) - known)


def test_files_that_reasons_name_are_there() -> None:
    for name, reason in statements().items():
        for path in re.findall(r"(?:tests|_speedups)/[\w/.]+\w", reason):
            assert (ROOT / path).exists(), f"{name} names {path}"
