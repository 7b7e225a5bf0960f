"""The tutorials are tried: each command that they name is run, and its output is as they say."""

import sys
from pathlib import Path

import pytest

from tests.harness.broker_process import ROOT
from tests.harness.transcript import Session, Step, steps

TUTORIALS = ROOT / "deploy" / "docs" / "tutorials"

# Servers that a reader has before the tutorial begins.
OTHER = r"printf 'listener 1884 127.0.0.1\nallow_anonymous true\n' >other.conf; (mosquitto -c other.conf 2>other.log &)"
BEFORE = {"emqx": Step(OTHER, [])}


@pytest.mark.parametrize(
    "name",
    ["mosquitto", "certificates", "cluster", "emqx", pytest.param("spark", marks=pytest.mark.soak)],
)
def test_a_tutorial_works(name: str, tmp_path: Path) -> None:
    session = Session(tmp_path, str(Path(sys.executable).parent))
    try:
        if name in BEFORE:
            session.run(BEFORE[name])
        for step in steps((TUTORIALS / f"{name}.md").read_text("utf-8")):
            session.run(step)
    finally:
        session.close()


def test_a_document_has_steps() -> None:
    text = "```console\n$ cat >a <<END\n> 1\n> END\n$ cat a\n1\n```\n\n```toml\n$ no\n```\n"
    assert list(steps(text)) == [Step("cat >a <<END\n1\nEND", []), Step("cat a", ["1"])]


def test_a_wrong_output_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.harness.transcript.DEADLINE", 1.0)
    session = Session(tmp_path, "")
    session.run(Step("echo 1 and 2", ["1 ... 2"]))
    with pytest.raises(AssertionError, match="no more"):
        session.run(Step("echo 1", ["2"]))
    with pytest.raises(AssertionError, match="false"):
        session.run(Step("false", []))
    session.close()
