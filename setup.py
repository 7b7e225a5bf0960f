"""Builds the compiled modules: every `.pyx` file is one extension module. Metadata is in pyproject.toml.

All packages are installed below `flockmq`, whose own modules stand in `broker/public`. A wheel and an sdist have the
commit that they were made of, in a file.
"""

import os
import subprocess
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
    "freethreading_compatible": False,
}
# FLOCKMQ_SANITIZE=address,undefined builds for AddressSanitizer and UndefinedBehaviorSanitizer (`make soak`). Signed
# overflow is no finding: Python's own flags have -fwrapv, which defines it.
SANITIZE = os.environ.get("FLOCKMQ_SANITIZE")
FLAGS = ["-O1", "-g", f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=undefined"] if SANITIZE else ["-O3", "-g0"]

FOLDERS = ("_speedups", "broker", "cluster", "loadtest")
PUBLIC = "broker/public"
IMPORTS = Path("build/import")  # a folder with `flockmq`, of links: for Cython, mypy and editors, which read sources


def link_sources() -> None:
    """Make `build/import/flockmq`, as it is installed."""
    package = IMPORTS / "flockmq"
    package.mkdir(parents=True, exist_ok=True)
    for source in (*map(Path, FOLDERS), *Path(PUBLIC).glob("*.*")):
        link = package / source.name
        if not link.is_symlink():
            link.symlink_to(Path("../../..") / source)


class BuildExt(build_ext):
    """Translates the modules to C when they are compiled: an sdist needs no C. Uses all cores."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()  # here: `pip install -e` resets the options of setup()

    def run(self) -> None:
        # On copies: setuptools has prepared its own objects, also when it only asks for the names of files.
        link_sources()
        copies = [Extension(module.name, list(module.sources)) for module in self.extensions]
        translated = cythonize(
            copies,
            compiler_directives=DIRECTIVES,
            include_path=[str(IMPORTS)],
            nthreads=os.cpu_count() or 1,
            cache=os.environ.get("CYTHON_CACHE_DIR", False),
        )
        for module, done in zip(self.extensions, translated, strict=True):
            module.sources, module.depends, module.libraries = done.sources, done.depends, done.libraries
        super().run()


COMMIT = "commit.txt"  # of an sdist, and of the package `flockmq.broker`


def write_commit(folder: Path) -> None:
    """Write the commit of the sources into a folder; none if they are in no repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        known = Path(COMMIT).read_text()  # these are the sources of an sdist
    except FileNotFoundError:
        found = subprocess.run(command, capture_output=True, text=True, check=False) if Path(".git").exists() else None
        known = found.stdout.strip() if found is not None else ""
    if known:
        (folder / COMMIT).write_text(known)


class BuildPy(build_py):
    """Also writes the commit, into a wheel."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib, "flockmq", "broker"))


class Sdist(sdist):
    """Also writes the commit."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


PACKAGES = find_packages(include=[f"{folder}*" for folder in FOLDERS], exclude=["broker.public"])

setup(
    packages=["flockmq", *(f"flockmq.{package}" for package in PACKAGES)],
    package_dir={"flockmq": PUBLIC, **{f"flockmq.{folder}": folder for folder in FOLDERS}},
    ext_modules=[
        Extension(
            ".".join(("flockmq", *path.with_suffix("").parts)),
            [str(path)],
            extra_compile_args=FLAGS,
            extra_link_args=[f"-fsanitize={SANITIZE}"] if SANITIZE else [],
        )
        for package in ("_speedups", "loadtest")
        for path in sorted(Path(package).rglob("*.pyx"))
    ],
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy, "sdist": Sdist},
)
