"""Commands of `flockmq`, their arguments, keys, and targets of make exist if documents or help pages name them."""

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flockmq.broker.cli import COMMANDS, main, run
from flockmq.broker.config.keys import KEYS
from flockmq.broker.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "deploy/docs").rglob("*.md")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`([^`]+)`")
PROGRAM = re.compile(r"(\.venv/bin/)?flockmq(?!:)")
SECTIONS = "|".join(sorted({key.section for key in KEYS.values() if key.section}))
TABLES = {"mqtt.rewrite", "mqtt.auto_subscribe", "shared.groups"}  # [[...]]


class ParsedError(Exception):
    """Raised by the parser in place of running the command."""


@pytest.fixture(autouse=True)
def parsed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands end when their arguments are parsed."""
    original = argparse.ArgumentParser.parse_known_args

    def parse(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        _, unknown = original(self, *args, **kwargs)
        if unknown:
            raise UsageError(f"unknown: {unknown}")
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse)


def shell_lines(text: str) -> Iterator[str]:
    """The command lines in a document's blocks, continuation lines joined."""
    for kind, block in BLOCK.findall(text):
        for line in re.sub(r"\\\n>?", " ", block).splitlines():
            if line[:2] in ("$ ", "> ") if kind == "console" else kind == "sh" or PROGRAM.match(line):
                yield line.removeprefix("$ ").removeprefix("> ")


def calls(line: str) -> Iterator[list[str]]:
    """The arguments of each `flockmq` in a shell's command line."""
    lexer = shlex.shlex(re.sub(r"\s\d(?=>)", " ", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] | None = None
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|<>()"):
            if words is not None:
                yield words
            words = None
        elif words is not None:
            words.append(word)
        elif PROGRAM.fullmatch(word):
            words = []


def check(line: str) -> int:
    """Check the calls of `flockmq` in a line; returns how many it has."""
    found = list(calls(line))
    for words in found:
        try:
            run(words)
        except ParsedError:
            continue
        except UsageError as error:
            pytest.fail(f"{line}\n{error}")
        pytest.fail(f"{line}\nruns")
    return len(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_of_documents(path: Path) -> None:
    for line in shell_lines(path.read_text("utf-8")):
        if "flockmq" in line:
            check(line)


def test_commands_of_help_pages(capsys: pytest.CaptureFixture[str]) -> None:
    found = 0
    for name in [None, *COMMANDS]:
        assert main([name, "--help"] if name else ["--help"]) == 0
        for line in capsys.readouterr().out.splitlines():
            if re.match(r"  (\S.* \| )?flockmq", line):
                found += check(re.split(r"\s{2,}|\s#\s", line.strip())[0])
    assert found > 100


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_keys_of_documents(path: Path) -> None:
    """Keys of the configuration in a text, and after `--set`."""
    text = path.read_text("utf-8")
    named = set(re.findall(r"--set ([a-z_.]+)=", text))
    for words in INLINE.findall(BLOCK.sub("", text)):
        words = re.sub(r"\.(?:py|pyx|pxd|lua)$", "", words)  # a file
        named |= set(re.findall(rf"(?<![\w./:-])(?:{SECTIONS})\.[a-z_]+(?![\w(./-])", words))
    keys = {re.sub(r"^(listeners)\.\w+\.", "", name) for name in named} - TABLES
    assert not {key for key in keys if key not in KEYS and not key.startswith("listeners.")}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_targets_of_make(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    text = path.read_text("utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^\$ .*\bmake ([a-z-]+)", text, re.M))
    assert named <= targets
