"""Imports point one way: from a layer to the layers above it here, never back, never in a circle."""

import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from flockmq.broker.config.keys import KEYS
from tests.architecture.imports import ROOT, Imports, circles, named, read
from tests.harness.deadline import DEADLINE

# A package imports itself and these.
PACKAGES = {
    "_speedups": (),
    "broker": ("_speedups",),
    "cluster": ("_speedups", "broker"),
    "loadtest": ("_speedups",),
    "tests": ("_speedups", "broker", "cluster", "loadtest"),
}
# Folders and modules of a package, from the bottom up; those on one line do not import each other.
LAYERS: dict[str, list[str]] = {
    "_speedups": ["base", "codec", "session", "routing", "log", "protocol", "net", "cluster"],
    "broker": [
        "errors version files",
        "logs",
        "standard_error state_machine config schemas",
        "sd_notify",
        "core",
        "storage",
        "backup",
        "auth",
        "hooks",
        "tracing",
        "streams",
        "interest",
        "coordination",
        "events",
        "broker",
        "metrics",
        "handlers",
        "listeners",
        "client",
        "links",
        "limits",
        "audit",
        "doctor",
        "rpc",
        "admin",
        "clock lifecycle",
        "node",
        "supervised_process append_only_file",
        "private_redis",
        "process",
        "supervisor",
        "commands",
        "cli",
        "public",
    ],
    "cluster": [
        "elsewhere",
        "redis",
        "state",
        "peers",
        "message_log",
        "replication",
        "sessions",
        "membership",
        "streams",
        "commit_replies",
        "primary",
        "among",
        "orphans",
        "shard",
        "sharding",
        "life",
        "build",
        "migration",
        "backup",
        "tables",
        "analytics",
        "replay",
        "follow",
        "lake connect",
        "commands",
    ],
    "loadtest": ["generator", "compare", "prove", "swarm", "bench analytics growth storm locustfile", "commands"],
}
ANALYTICS = ["log", "sink", "compute", "output", "report", "commands"]
TESTS = ["cases model", "harness"]  # all the rest stands on these

# Imports that point upwards, as "importer -> imported", and circles. Both lists are empty, and stay so.
EXCEPTIONS: set[str] = set()
CIRCLES: list[list[str]] = []


@cache
def all_imports() -> Imports:
    """Of the tree; read by the first test, not by each worker that collects the tests."""
    return read(tuple(PACKAGES))


def rank(module: str) -> int | None:
    """The number of a module's layer; None where a package has none for it: its own root, or not listed."""
    package, *rest = module.split(".")
    if not rest:
        return None
    layers = [line.split() for line in LAYERS.get(package, [])]
    return next((number for number, names in enumerate(layers) if rest[0] in names), None)


def upward() -> set[str]:
    """Imports within a package from a lower layer to a higher one."""
    found = set()
    for module, imported in all_imports().items():
        for other in imported:
            here, there = rank(module), rank(other)
            if module.split(".")[0] != other.split(".")[0] or here is None or there is None:
                continue
            is_level = here == there and module.split(".")[1] != other.split(".")[1]
            if there > here or is_level:
                found.add(f"{module} -> {other}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_those_below_them(package: str) -> None:
    may = {package, *PACKAGES[package]}
    for module, imported in all_imports().items():
        if module.split(".")[0] == package:
            wrong = {other for other in imported if other.split(".")[0] not in may}
            assert not wrong, f"{module} imports {wrong}"


@pytest.mark.parametrize("package", LAYERS)
def test_every_module_has_a_layer(package: str) -> None:
    missing = {module for module in all_imports() if module.startswith(f"{package}.") and rank(module) is None}
    assert not missing


def test_layers_import_those_below_them() -> None:
    found = upward()
    assert found <= EXCEPTIONS, "\n".join(sorted(found - EXCEPTIONS))


def test_there_is_no_circle() -> None:
    allowed = [set(circle) for circle in CIRCLES]
    found = [circle for circle in circles(all_imports()) if not any(set(circle) <= known for known in allowed)]
    assert not found, "\n".join(" ".join(circle) for circle in found)


def test_folders_of_the_analytics_import_what_they_stand_on() -> None:
    """Reading the log, computing, writing and showing are folders; all of them use the modules beside them."""
    order = {name: number for number, name in enumerate(ANALYTICS)}
    prefix = "cluster.analytics."
    for module, imported in all_imports().items():
        folder = module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else ""
        for other in imported:
            if folder in order and other.startswith(prefix):
                of = other.removeprefix(prefix).split(".")[0]
                assert order.get(of, -1) <= order[folder], f"{module} imports {other}"


def test_tests_stand_on_the_harness() -> None:
    lower = {name: number for number, names in enumerate(TESTS) for name in names.split()}
    for module, imported in all_imports().items():
        parts = module.split(".")
        if parts[0] != "tests" or len(parts) < 2 or parts[1] not in lower or parts[-1].startswith("test_"):
            continue
        for other in imported:
            if other.startswith("tests."):
                assert lower.get(other.split(".")[1], 99) <= lower[parts[1]], f"{module} imports {other}"


def test_the_check_sees_an_import(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flockmq.cluster.bus import Bus\n"
        "def f():\n    from . import b\n"
    )
    (tmp_path / "b.pyx").write_text(
        "from flockmq.broker.node cimport (Node,\n    Other as O)\ncimport x.y, z\nfrom ..q cimport C\n"
    )
    assert named(tmp_path / "a.py", "p.a") >= {"cluster.bus.Bus", "p.b"}
    assert named(tmp_path / "b.pyx", "p.b") == {"broker.node.Node", "broker.node.Other", "x.y", "z", "q.C"}
    package = tmp_path / "p"
    package.mkdir()
    for name, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        (package / f"{name}.py").write_text(f"import p.{imported}\n")
    assert circles(read(("p",), tmp_path)) == [["p.a", "p.b", "p.c"]]


def test_only_the_configuration_reads_the_environment() -> None:
    for path in (ROOT / "broker").rglob("*.py"):
        if path.parent.name != "config":
            assert "os.environ" not in path.read_text() and "getenv" not in path.read_text(), path


def test_broker_needs_no_cluster_library() -> None:
    code = (
        "import sys, flockmq.broker.node, flockmq.broker.cli\n"
        "assert not {'redis', 'pyspark', 'locust', 'pytest', 'aiohttp'} & {name.split('.')[0] for name in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=DEADLINE)


def test_a_node_does_not_import_the_analytics() -> None:
    code = (
        "import sys, flockmq.cluster.build\n"
        "assert not [name for name in sys.modules if name.startswith('flockmq.cluster.analytics')]"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=DEADLINE)


# ---- the names under which modules are installed ----

OURS = "broker|cluster|_speedups|loadtest"
# An import statement, also one in a text, and a name in quotes: `broker.cli`, without `flockmq.` before it.
BARE_IMPORT = re.compile(rf"(?:^|[\"'`;]|\\n)[ \t]*(?:from|c?import)[ \t]+((?:{OURS})(?:\.\w+)*)(?=[ \t,;\n\\])", re.M)
QUOTED = re.compile(rf"[\"'`]((?:{OURS})(?:\.\w+)+)")
FOREIGN = "deploy/test_packages.py"  # makes a user's project with modules of these names
READ = {".py", ".pyi", ".pyx", ".pxd", ".md", ".toml", ".yml", ".sh"}


def bare_names(text: str, modules: Iterable[str]) -> set[str]:
    """The names of our modules in a text that begin with the folder: as they are not installed."""
    named = {name for name in QUOTED.findall(text) if ".".join(name.split(".")[:3]) in modules}
    return {*BARE_IMPORT.findall(text), *named}


def test_modules_have_the_names_under_which_they_are_installed() -> None:
    """A user's `broker.py` is another module; and a bare name would load a second copy of ours."""
    modules = all_imports().keys() - KEYS.keys()
    found = {}
    for folder in (*PACKAGES, "deploy", ".github"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in READ and "node_modules" not in path.parts and path.parent.name != "architecture":
                names = bare_names(path.read_text("utf-8"), modules)
                found.update({str(path.relative_to(ROOT)): names} if names else {})
    assert found.keys() <= {f"tests/{FOREIGN}"}, found


def test_the_check_sees_a_bare_name() -> None:
    text = "import broker\nfrom cluster.redis import link\nx = '_speedups.net.tls', 'cluster.lease'\n"
    modules = {"_speedups.net.tls", "cluster.redis"}
    assert bare_names(text, modules) == {"broker", "cluster.redis", "_speedups.net.tls"}
    assert not bare_names("from flockmq.broker import node\nimport flockmq.cluster\nbroker.node.x", modules)
