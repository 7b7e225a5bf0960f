"""Which module imports which, read from the sources: `TYPE_CHECKING`, functions' own imports and `cimport` included.

Modules have their names within the repository: `broker.node` is installed as `flockmq.broker.node`.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd"}
CYTHON = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n#]+)|c?import[ \t]+([\w., \t]+))", re.M
)

Imports = dict[str, set[str]]


def module_of(path: Path, root: Path = ROOT) -> str:
    """The dotted name of a file; a package has its folder's name."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named(path: Path, module: str) -> set[str]:
    """Dotted names that a file imports: `from a import b` gives `a.b`."""
    return {name.removeprefix("flockmq.") for name in _named(path, module)}


def _named(path: Path, module: str) -> set[str]:
    text = path.read_text("utf-8")
    found: set[str] = set()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]

    def absolute(level: int, name: str) -> str:
        parent = package[: len(package) - level + 1] if level else []
        return ".".join([*parent, *([name] if name else [])])

    if path.suffix in {".pyx", ".pxd"}:
        for source, names, modules in CYTHON.findall(text):
            words = [
                word.split()[0] for word in re.sub(r"[()\\]|#[^\n]*", " ", names or modules).split(",") if word.strip()
            ]
            name = source.lstrip(".")
            place = absolute(len(source) - len(name), name)
            found |= {f"{place}.{word}" if place else word for word in words}
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            place = absolute(node.level, node.module or "")
            found |= {f"{place}.{alias.name}" if place else alias.name for alias in node.names}
    return found


def read(packages: tuple[str, ...], root: Path = ROOT) -> Imports:
    """The modules of these packages, and which of each other they import."""
    files = [
        path
        for package in packages
        for path in sorted((root / package).rglob("*"))
        if path.suffix in SUFFIXES and "node_modules" not in path.parts
    ]
    modules = {module_of(path, root) for path in files}
    imports: Imports = {module: set() for module in modules}
    for path in files:
        module = module_of(path, root)
        for name in named(path, module):
            parts = name.split(".")
            while parts and ".".join(parts) not in modules:
                parts.pop()
            if parts and ".".join(parts) != module:
                imports[module].add(".".join(parts))
    return imports


def circles(imports: Imports) -> list[list[str]]:
    """Modules that import each other, directly or through others: the strongly connected components, sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(imports[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            circle = []
            while not circle or circle[-1] != module:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(imports):
        if module not in index:
            visit(module)
    return sorted(found)
