"""The zip file for `spark-submit --py-files`: the analytics, their imports of FlockMQ, and redis-py.

The imports are read from the sources, so the list is complete. A compiled module is an error, because Python can't
import it from a zip file. Spark and Arrow are not included: executors have Spark, and need `pip install pyarrow`. The
same sources result in the same bytes.
"""

import ast
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from ...broker.errors import FlockError

OURS = ("broker", "cluster")
ROOT = Path(__file__).resolve().parents[2]  # of the folders in OURS
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip file
SUFFIXES = {".py", ".html", ".properties"}


def build() -> bytes:
    """The zip file's bytes.

    Raises:
        FlockError: redis-py is not installed, or the analytics need a compiled module.
    """
    ours = {str(PurePosixPath("flockmq", path.relative_to(ROOT))): path for path in _ours()}
    files = {"flockmq/__init__.py": _place("flockmq") / "__init__.py"} | ours | _redis()
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(files.items()):
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, path.read_bytes())
    return output.getvalue()


def _ours() -> set[Path]:
    """Files of the analytics without the commands, and all their direct and indirect imports of FlockMQ."""
    here = ROOT / "cluster" / "analytics"
    commands = here / "commands"
    files = {path for path in here.rglob("*") if path.suffix in SUFFIXES and commands not in path.parents}
    waiting = [path for path in files if path.suffix == ".py"]
    while waiting:
        for module in imported(waiting.pop()):
            for path in _module_files(module):
                if path not in files:
                    files.add(path)
                    waiting.append(path)
    return files


def imported(path: Path, root: Path = ROOT) -> Iterator[str]:
    """The modules of FlockMQ that a file imports, and possibly names in them: without `flockmq.`, from `root` on."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = ["flockmq", *package][: len(package) + 2 - node.level] if node.level else []
            module = ".".join([*parent, *([node.module] if node.module else [])])
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        for name in names:
            top, _, rest = name.partition(".")
            if top != "flockmq":
                continue
            if rest.partition(".")[0] == "_speedups":
                raise FlockError(f"{path.name} needs {name}, which is compiled and can't be in a zip file")
            if rest.partition(".")[0] in OURS:
                yield rest


def _module_files(module: str) -> Iterator[Path]:
    """The files of a module and of its parent packages; none for a name within a module."""
    path = ROOT
    for part in module.split("."):
        path = path / part
        if (path / "__init__.py").exists():
            yield path / "__init__.py"
        elif path.with_suffix(".py").exists():
            yield path.with_suffix(".py")


def _redis() -> dict[str, Path]:
    place = _place("redis")
    return {str(PurePosixPath("redis", path.relative_to(place))): path for path in place.rglob("*.py")}


def _place(package: str) -> Path:
    """The folder of a package that can be imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FlockError(f"the library {package} is missing", "pip install 'flockmq[analytics]'")
    return Path(spec.origin).parent
