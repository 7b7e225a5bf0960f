"""Prints deploy/docs/internals/files.md: each file of the product, and the first sentence of its text about itself."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("_speedups", "broker", "cluster", "loadtest")
ENDINGS = (".py", ".pyx", ".pxd", ".lua")
HEAD = """# The files

For developers who look for the place of a thing: each file of the product in Python, Cython and Lua, with its
first sentence. Folders are in [modules.md](modules.md), in the order of the layers.
`python -m tests.architecture.files_page` prints this page, and a test compares them.
"""


def page() -> str:
    """The text of the page."""
    folders: dict[Path, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in map(Path, listed.stdout.splitlines()):
        if path.suffix in ENDINGS and (ROOT / path).exists():
            folders[path.parent][path.stem].append(path)
    lines = [HEAD]
    for folder in sorted(folders, key=lambda each: (PACKAGES.index(each.parts[0]), each)):
        entries = list(_entries(folders[folder]))
        if entries:
            lines += [f"## {folder}", "", *entries, ""]
    return "\n".join(lines)


def _entries(files: dict[str, list[Path]]) -> Iterator[str]:
    for stem in sorted(files):
        paths = sorted(files[stem], key=lambda path: ENDINGS.index(path.suffix))
        sentence = next((found for path in paths if (found := first_sentence(ROOT / path))), "")
        if sentence:
            names = ", ".join(f"`{path.name}`" for path in paths)
            yield fill(f"- {names}: {sentence}", 120, subsequent_indent="  ", break_on_hyphens=False)


def first_sentence(path: Path) -> str:
    """The first sentence of a docstring, or of the comment at the top of a file."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = re.sub(r"\A(?:# distutils:.*\n+)+", "", text)
        if text.startswith('"""'):
            return _first(text[3:].split('"""')[0])
        comment = re.match(r"(?:(?:#|--) ?.*\n)*", text)
        about = re.sub(r"(?m)^(?:#|--) ?", "", comment[0] if comment else "")
    return _first(about)


def _first(about: str) -> str:
    paragraph = " ".join(about.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s+(?=[A-Z`\[])", paragraph)[0].removesuffix(":")


if __name__ == "__main__":
    print(page(), end="")
