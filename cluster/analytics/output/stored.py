"""Where the job's tables are, and the files that a table of Delta or Iceberg consists of: without Spark."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ....broker.errors import FlockError
from ...tables.formats import open_table
from ...tables.place import DELTA, ICEBERG, Place
from ...tables.table import Contents
from ..tables import time_of

NAMESPACE = "flockmq"  # of Iceberg tables, without the option `namespace`
CATALOG = "catalog.db"  # SQLite, in a local output: the catalog of Iceberg tables if no other is given
DIRECTORIES = {DELTA: "_delta_log", ICEBERG: "metadata"}  # that only tables of the format have


def local_path(output: str) -> str | None:
    """The absolute path of an output that is on the local disk; else None."""
    scheme, _, path, *_ = urlsplit(output)
    return os.path.abspath(unquote(path)) if scheme == "file" else None if scheme else os.path.abspath(output)


def place_of(kind: str, output: str, name: str, writer: str = "", options: Mapping[str, str] | None = None) -> Place:
    """The place of a table of Delta or Iceberg.

    Args:
        kind: DELTA or ICEBERG.
        output: the job's.
        name: of the table.
        writer: of its commits; empty: of a reader.
        options: as given on the command line.

    Raises:
        FlockError: no catalog is given for Iceberg tables, and the output is not on the local disk.
    """
    path = local_path(output)
    options = dict(options or {})
    table = f"{output if path is None else path}/{name}"
    if kind == ICEBERG:
        namespace = options.pop("namespace", NAMESPACE)
        location = table if path is None else Path(table).as_uri()
        return Place(f"{namespace}.{name}", writer, time_of(name), "hour", options or _catalog(output, path), location)
    return Place(table, writer, time_of(name), "hour", options)


def _catalog(output: str, path: str | None) -> dict[str, str]:
    if path is None:
        raise FlockError(
            f"the Iceberg tables of {output} need a catalog",
            "such as --table-option type=rest --table-option uri=http://HOST:8181",
        )
    return {"type": "sql", "uri": f"sqlite:///{path}/{CATALOG}", "warehouse": Path(path).as_uri()}


def stored(directory: str, name: str, exists: Callable[[str], bool]) -> Contents | None:
    """The files and columns of a table of Delta or Iceberg; None if it is plain Parquet files.

    Args:
        directory: the job's output.
        name: of the table.
        exists: whether a path exists.

    Raises:
        FlockError: the table can't be read, or its catalog is not known.
    """
    kinds = [kind for kind, path in DIRECTORIES.items() if exists(f"{directory}/{name}/{path}")]
    if not kinds:
        return None
    if kinds == [ICEBERG] and not exists(f"{directory}/{CATALOG}"):
        raise FlockError(
            f"{directory} has Iceberg tables of a catalog elsewhere, which this command does not read",
            "query them with a program that has the catalog",
        )
    return open_table(kinds[0], place_of(kinds[0], directory, name)).contents()
