"""Documents agree with the tree: links lead somewhere, the list of modules is the tree on disk, numbers are defined."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture import files_page

ROOT = Path(__file__).resolve().parents[2]
DESIGN = ROOT / "deploy" / "docs" / "DESIGN.md"
MODULES = ROOT / "deploy" / "docs" / "internals" / "modules.md"
FILES = MODULES.with_name("files.md")
FAULTS = ROOT / "deploy" / "docs" / "FAULTS.md"
BENCHMARKS = ROOT / "deploy" / "docs" / "BENCHMARKS.md"
LISTED = ("_speedups", "broker", "cluster", "loadtest", "tests")
FIXED = {"pyproject.toml", "setup.py", "README.md", "docker-compose.yml", "deploy", *LISTED}
BESIDE = {"Makefile", "MANIFEST.in", "constraints.txt", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md"}
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
NUMBER = re.compile(r"\b([FAIG][1-9]\d?)\b(?:-([FAIG]?)(\d+)\b)?")
NO_NUMBERS = ("tests/model/", "tests/cases/", "tests/clients/package", "tests/protocol/conversations/")


def tracked(*patterns: str) -> list[Path]:
    """Files of the project: the files in git."""
    found = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    names = found.stdout.split() or [
        str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.rglob(pattern)
    ]
    return [ROOT / name for name in names if not set(Path(name).parts) & {".venv", "node_modules", "build"}]


# ---- links ----


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", tracked("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path: Path) -> None:
    text = path.read_text("utf-8")
    for groups in LINK.findall(text):
        target = groups[0] or groups[1]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        assert place.exists(), f"{target} is not there"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place.read_text("utf-8")), f"{target}: no such heading"


# ---- the listing ----


def test_the_top_level_has_nothing_else() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in tracked("*")}
    assert {name for name in names if not name.startswith(".")} == FIXED | BESIDE


def listing(text: str) -> Iterator[tuple[Path, bool]]:
    """The paths of the section "The tree", and whether each is a folder.

    A line is `    NAME ...  text`; deeper indentation is within the last folder above, whose name ends with a slash.
    """
    section = text[text.index("## The tree") :]
    section = section[: section.find("\n## ", 1)]
    folders: list[tuple[int, Path]] = []
    for line in section.splitlines():
        match = re.match(r"( {4,})(\S.*)$", line)
        if match is None:
            continue
        indent, rest = len(match[1]), match[2]
        while folders and folders[-1][0] >= indent:
            folders.pop()
        parent = folders[-1][1] if folders else Path()
        for name in re.split(r"\s{2,}", rest)[0].split():
            yield parent / name.rstrip("/"), name.endswith("/")
            if name.endswith("/"):
                folders.append((indent, parent / name.rstrip("/")))


def folders_on_disk() -> set[Path]:
    found = {path.relative_to(ROOT).parent for name in LISTED for path in tracked(name)}
    return {parent for path in found for parent in (path, *path.parents) if parent != Path()}


def test_the_listing_is_the_tree() -> None:
    named = list(listing(MODULES.read_text("utf-8")))
    for path, is_folder in named:
        there = (ROOT / path).is_dir() if is_folder else any((ROOT / path.parent).glob(f"{path.name}*"))
        assert there, f"{path} is not there"
    missing = folders_on_disk() - {path for path, is_folder in named if is_folder}
    assert not missing, sorted(map(str, missing))


def test_the_files_page_is_current() -> None:
    assert FILES.read_text("utf-8") == files_page.page(), "python -m tests.architecture.files_page > files.md"


def test_every_file_says_what_it_is() -> None:
    listed = {*re.findall(r"`(\w+\.(?:py|pyx|pxd|lua))`", files_page.page())}
    found = {path for name in files_page.PACKAGES for path in tracked(name) if path.suffix in files_page.ENDINGS}
    silent = {path.name for path in found if path.name != "__init__.py"} - listed
    assert not silent


def test_a_listing_is_read() -> None:
    lines = ["## The tree", "", "    a/       all", "      b.py c/  two", "        d    in c", "    e/  more", ""]
    text = "\n".join([*lines, "## Next", "", "    f/  not of it", ""])
    assert [(str(path), folder) for path, folder in listing(text)] == [
        ("a", True),
        ("a/b.py", False),
        ("a/c", True),
        ("a/c/d", False),
        ("e", True),
    ]


# ---- numbers of faults, attacks, invariants and guarantees ----


def numbers(text: str) -> set[str]:
    """F1, A2, I3 ... that a text cites; `I1-I3` and `I6-I8` are all between."""
    found = set()
    for first, _, last in NUMBER.findall(text):
        letter, number = first[0], int(first[1:])
        found |= {f"{letter}{n}" for n in range(number, (int(last) if last else number) + 1)}
    return found


def prose(path: Path) -> str:
    """The sentences of a file: all of a document, docstrings, comments and other texts of a source."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.M | re.S)
    return re.sub(r"U\+\w+|0x\w+|\\x\w\w|b\"[^\"]*\"|byte \w\w", "", text)


def test_numbers_are_in_the_catalogue() -> None:
    known = {row[1] for row in re.finditer(r"^\| ([FAIG]\d+) \|", FAULTS.read_text() + DESIGN.read_text(), re.M)}
    for path in tracked("*.py", "*.pyx", "*.pxd", "*.md", "*.lua"):
        if str(path.relative_to(ROOT)).startswith(NO_NUMBERS) or path == Path(__file__):
            continue
        unknown = numbers(prose(path)) - known
        assert not unknown, f"{path.relative_to(ROOT)} cites {sorted(unknown)}"


def test_files_that_the_catalogue_names_are_there() -> None:
    for name in set(re.findall(r"`((?:tests|broker|cluster|_speedups)/[\w/.]+)", FAULTS.read_text())):
        assert (ROOT / name).exists(), name


# ---- beginnings ----


@pytest.mark.parametrize("path", tracked("deploy/docs/*.md"), ids=lambda path: path.name)
def test_a_page_begins_with_its_reader(path: Path) -> None:
    title, _, text = path.read_text("utf-8").partition("\n\n")
    assert title.startswith("# ")
    assert re.match(r"For [a-z]", text)


def test_design_names_each_page_of_internals() -> None:
    named = set(re.findall(r"\(internals/(\w+\.md)\)", DESIGN.read_text("utf-8")))
    assert named == {path.name for path in tracked("deploy/docs/internals/*.md")}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 1200


def test_the_readme_has_the_figures_of_the_benchmarks() -> None:
    """Each figure of the table in "How fast" is in BENCHMARKS.md, rounded."""
    section = (ROOT / "README.md").read_text("utf-8").partition("\n## How fast\n")[2].partition("\n## ")[0]
    cells = [cell.strip() for row in re.findall(r"^\| .*$", section, re.M) for cell in row.split("|")[2:]]
    told = [cell for cell in cells if re.fullmatch(r"\d+(\.\d+)?", cell)]
    assert len(told) >= 15
    measured = [float(text) for text in re.findall(r"\d+(?:\.\d+)?", BENCHMARKS.read_text("utf-8"))]
    for cell in told:
        step = 10.0 ** -len(cell.partition(".")[2])
        assert any(abs(float(cell) - value) <= step / 2 + 1e-9 for value in measured), cell
