"""The prefix of shared subscriptions is parsed at one place."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LITERAL = re.compile(r"""["']\$share/["']""")


def test_only_the_codec_parses_names_of_shared_subscriptions() -> None:
    parsers = [
        path.relative_to(ROOT).as_posix()
        for folder in ("_speedups", "broker", "cluster", "loadtest")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".pyx", ".pxd"}
        and "node_modules" not in path.parts
        and LITERAL.search(path.read_text("utf-8"))
    ]
    assert parsers == ["_speedups/codec/topics.pyx"]
