"""Builds the compiled modules: every `.pyx` file is one extension module. Metadata is in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

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


class BuildExt(build_ext):
    """Translates the modules to C when they are compiled: an sdist needs no C. Uses all cores."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()  # here: `pip install -e` resets the options of setup()

    def run(self) -> None:
        # On copies: setuptools has prepared its own objects, also when it only asks for the names of files.
        copies = [Extension(module.name, list(module.sources)) for module in self.extensions]
        translated = cythonize(
            copies,
            compiler_directives=DIRECTIVES,
            nthreads=os.cpu_count() or 1,
            cache=os.environ.get("CYTHON_CACHE_DIR", False),
        )
        for module, done in zip(self.extensions, translated, strict=True):
            module.sources, module.depends, module.libraries = done.sources, done.depends, done.libraries
        super().run()


setup(
    # What other programs import is called `flockmq`, and stands in `broker/public`.
    packages=[
        "flockmq",
        *find_packages(include=["_speedups*", "broker*", "cluster*", "loadtest*"], exclude=["broker.public"]),
    ],
    package_dir={"flockmq": "broker/public"},
    ext_modules=[
        Extension(
            ".".join(path.with_suffix("").parts),
            [str(path)],
            extra_compile_args=FLAGS,
            extra_link_args=[f"-fsanitize={SANITIZE}"] if SANITIZE else [],
        )
        for package in ("_speedups", "loadtest")
        for path in sorted(Path(package).rglob("*.pyx"))
    ],
    cmdclass={"build_ext": BuildExt},
)
