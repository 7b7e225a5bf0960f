"""Libraries that the dynamic linker loads into a process before all others: a clock, or a disk, of a test's own."""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

VARIABLE = "LD_PRELOAD"


@functools.cache
def library(source: Path) -> str:
    """The path of the library that is compiled from a file in C."""
    path = Path(tempfile.mkdtemp(prefix="flockmq-test-")) / f"{source.stem}.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(path), str(source)]
    subprocess.run(command, check=True)
    return str(path)


def preload(source: Path) -> dict[str, str]:
    """The variable of a process with this library, behind this process's libraries: a sanitizer has to be first."""
    return {VARIABLE: " ".join([*os.environ.get(VARIABLE, "").split(), library(source)])}
