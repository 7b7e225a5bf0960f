"""`make tidy`: a report of code and prose that could be smaller, clearer or better named. It fails nothing.

Sizes are aims, and sentences are found by their words: read the report at the end of a piece of work, and decide. Some
words are frequent only where a sentence leaves its noun out, or an event its name: the last lines count them.
"""

import ast
import os
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("_speedups", "broker", "cluster", "loadtest")
MAX_FILE, MAX_CLASS, MAX_FUNCTION, MAX_PARAMETERS = 500, 350, 70, 8
MAX_LINES_WITH_BASES, MAX_METHODS_WITH_BASES = 600, 60  # of one object: a class and all classes that it derives from
LARGE_BY_NATURE = {"schema.py", "tables.py", "tables.pyx", "externs.pxd", "posix.pxd", "openssl.pxd"}
WITHOUT_TESTS = {"__init__", "__main__"}

# A clause that begins with a bare "what" or "who" and stands for a thing; questions are none.
BEFORE = r"(?:^|[.;:,] |\b(?:of|to|by|for|from|with|and|or|that|than|is|are) )"
BARE = re.compile(BEFORE + r"(what|who|whoever|nobody)\b", re.I)
# Programs do not do these.
HUMAN = re.compile(
    r"\b(tells?|told|says?|said|hears?|heard|feels?|felt|wants?|wanted|knows?|knew|known|comes?|came|goes|went)\b", re.I
)
LOG_CALL = re.compile(r"\blog\.(?:debug|info|warning|error|exception)\(\s*\"([^\"]+)\"")
CLASS = re.compile(r"^(?:cdef )?class (\w+)(?:\(([^)]*)\))?:")
METHOD = re.compile(r"^    (?:async )?(?:cdef|cpdef|def) (?:[^(=]*\W)?(\w+)\(")
BLOCK = re.compile(r"^( *)(cdef class|class|cdef|cpdef|def|async def)\b(.*)$")

# Words that stand for a noun that is elsewhere, or for an event without a name.
ACCENTS = {
    "that of, those of": re.compile(r"\b(?:that|those) of\b", re.I),
    "those that, those who": re.compile(r"\bthose (?:that|which|who|whose)\b", re.I),
    "the one, the ones": re.compile(r"\bthe ones?\b(?! (?:hand|side|time|place))", re.I),
    "meanwhile, by then, since then": re.compile(r"\b(?:meanwhile|by then|since then)\b", re.I),
    "anew, of its own": re.compile(r"\banew\b|\bof (?:its|their|his|our) own\b", re.I),
}

Found = tuple[str, Path, int, str]  # kind, file, line, description


def sources() -> Iterator[Path]:
    for package in (*PACKAGES, "tests"):
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in {".py", ".pyx", ".pxd"} and "node_modules" not in path.parts:
                yield path


# ---- sizes ----


def sizes(path: Path) -> Iterator[Found]:
    text = path.read_text("utf-8")
    lines = text.count("\n")
    if path.name not in LARGE_BY_NATURE and lines > MAX_FILE:
        yield "file", path, 1, f"{lines} lines"
    if path.suffix == ".py":
        yield from python_sizes(path, ast.parse(text))
    else:
        yield from cython_sizes(path, text.splitlines())


def python_sizes(path: Path, tree: ast.Module) -> Iterator[Found]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, ast.ClassDef):
                if lines > MAX_CLASS:
                    yield "class", path, node.lineno, f"{node.name}: {lines} lines"
                continue
            if lines > MAX_FUNCTION:
                yield "function", path, node.lineno, f"{node.name}: {lines} lines"
            given = node.args
            count = sum(
                argument.arg not in ("self", "cls") for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)
            )
            if count > MAX_PARAMETERS:
                yield "parameters", path, node.lineno, f"{node.name}: {count}"


def cython_sizes(path: Path, lines: list[str]) -> Iterator[Found]:
    """Blocks by their indentation: one ends before the next line that is not deeper."""
    for number, line in enumerate(lines):
        match = BLOCK.match(line)
        if match is None or ("class" not in match[2] and "(" not in line):
            continue
        head = number
        while head < len(lines) - 1 and not lines[head].split("#")[0].rstrip().endswith(":"):
            head += 1
            if lines[head].strip() and len(lines[head]) - len(lines[head].lstrip()) <= len(match[1]):
                break
        if not lines[head].split("#")[0].rstrip().endswith(":"):
            continue
        end = head + 1
        while end < len(lines):
            text = lines[end]
            if text.strip() and len(text) - len(text.lstrip()) <= len(match[1]):
                break
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        size = end - number
        is_class = "class" in match[2]
        named = re.search(r"(\w+)\s*[(:]", match[3])
        name = named[1] if named else match[3].strip()
        if size > (MAX_CLASS if is_class else MAX_FUNCTION):
            yield "class" if is_class else "function", path, number + 1, f"{name}: {size} lines"
        if not is_class:
            inside = " ".join(lines[number : head + 1]).partition("(")[2].rpartition(")")[0]
            count = len([word for word in inside.split(",") if word.strip() and word.strip() not in ("self", "*", "/")])
            if count > MAX_PARAMETERS:
                yield "parameters", path, number + 1, f"{name}: {count}"


# ---- classes with their bases ----


class Class(NamedTuple):
    path: Path
    line: int
    name: str
    bases: tuple[str, ...]
    lines: int
    methods: frozenset[str]


def python_classes(path: Path, tree: ast.Module) -> Iterator[Class]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Class(path, node.lineno, node.name, bases, lines, frozenset(methods))


def cython_classes(path: Path, lines: list[str]) -> Iterator[Class]:
    for number, line in enumerate(lines):
        match = CLASS.match(line)
        if match is None:
            continue
        end = number + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        bases = tuple(base.strip().rpartition(".")[2] for base in (match[2] or "").split(",") if base.strip())
        methods = {found[1] for text in lines[number:end] if (found := METHOD.match(text))}
        yield Class(path, number + 1, match[1], bases, end - number, frozenset(methods))


def with_bases() -> Iterator[Found]:
    """Classes that are too large together with their bases."""
    classes: dict[str, list[Class]] = defaultdict(list)
    for path in sources():
        if path.suffix == ".pxd" or "tests" in path.relative_to(ROOT).parts[:1]:
            continue
        text = path.read_text("utf-8")
        is_python = path.suffix == ".py"
        for found in python_classes(path, ast.parse(text)) if is_python else cython_classes(path, text.splitlines()):
            classes[found.name].append(found)

    def chain(of: Class) -> dict[tuple[Path, str], Class]:
        """The class and its bases; of several classes with the name of a base, the nearest."""
        found = {(of.path, of.name): of}
        for base in of.bases:
            near = sorted(classes.get(base, []), key=lambda each: -len(os.path.commonpath([each.path, of.path])))
            if near and near[0] is not of:
                found |= chain(near[0])
        return found

    for known in classes.values():
        for each in known:
            all_of = chain(each).values()
            lines, methods = sum(one.lines for one in all_of), len(frozenset[str]().union(*(o.methods for o in all_of)))
            if lines > MAX_LINES_WITH_BASES or methods > MAX_METHODS_WITH_BASES:
                what = f"{' <- '.join(one.name for one in all_of)}: {lines} lines, {methods} methods"
                yield "class with its bases", each.path, each.line, what


# ---- language ----


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and log events of a source; paragraphs of a document."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        plain = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), text, flags=re.M | re.S)
        yield from ((number, line) for number, line in enumerate(plain.splitlines(), 1) if not line.startswith("    "))
        return
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield getattr(node, "lineno", 1), docstring
        with path.open("rb") as stream:
            for token in tokenize.tokenize(stream.readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string.lstrip("# ")
    else:
        for match in re.finditer(r'"""(.*?)"""|#([^\n]*)', text, re.S):
            yield text.count("\n", 0, match.start()) + 1, (match[1] or match[2] or "").strip()
    for match in LOG_CALL.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1]


def language(path: Path) -> Iterator[Found]:
    for line, text in texts(path):
        for sentence in re.split(r"(?<=[.!?])\s+", text):
            short = " ".join(sentence.split())[:90]
            if BARE.search(sentence) and not sentence.rstrip().endswith("?"):
                yield "rule 2 (bare what, who)", path, line, short
            elif HUMAN.search(sentence):
                yield "rule 3 (programs that tell, want, come)", path, line, short


# ---- names ----


def names() -> Iterator[Found]:
    for path in sources():
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for name in set(re.findall(r"\b(?:[A-Z][A-Z0-9_]*_MOST|MOST_[A-Z0-9_]+|MOST)\b", line)):
                yield "name with MOST", path, number, name
    tests: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tests[path.name].append(path)
    for same in tests.values():
        if len(same) > 1:
            yield "test files of one name", same[0], 1, " ".join(str(path.relative_to(ROOT)) for path in same)
    for package in ("_speedups", "broker", "cluster"):
        for path in sorted((ROOT / package).rglob("*")):
            if (
                path.suffix in {".py", ".pyx"}
                and path.stem not in WITHOUT_TESTS
                and f"test_{path.stem}.py" not in tests
            ):
                yield "module without a test file", path, 1, f"test_{path.stem}.py"


# ---- the report ----


def accents(paths: Iterable[Path]) -> dict[str, float]:
    """How often some files have each of ACCENTS, per 10 000 words of their sentences."""
    written = [" ".join(text.split()) for path in paths for _, text in texts(path)]
    words = max(sum(len(text.split()) for text in written), 1)
    return {name: sum(len(e.findall(text)) for text in written) * 10_000 / words for name, e in ACCENTS.items()}


def main() -> None:
    tests = [path for path in sources() if path.relative_to(ROOT).parts[0] == "tests"]
    code = [path for path in sources() if path.relative_to(ROOT).parts[0] != "tests"]
    documents = [*ROOT.glob("*.md"), *(ROOT / "deploy" / "docs").rglob("*.md")]
    found = [row for path in (*code, *tests) for row in sizes(path)]
    found += list(with_bases())
    found += [row for path in (*code, *documents, *tests) for row in language(path)]
    found += list(names())
    if "--totals" not in sys.argv:
        for kind, path, line, what in found:
            print(f"{path.relative_to(ROOT)}:{line}: {kind}: {what}")
        print()
    for kind, count in Counter(kind for kind, *_ in found).most_common():
        print(f"{count:6}  {kind}")
    columns = [accents(paths) for paths in (documents, code, tests)]
    print("\nper 10 000 words:              documents    code   tests")
    for name in ACCENTS:
        print(f"{name:30} " + "".join(f"{column[name]:8.1f}" for column in columns))


if __name__ == "__main__":
    main()
