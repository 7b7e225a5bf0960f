"""The file of `flockmq lake`: from TOML to tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..analytics.columns import Columns
from ..follow.settings import LogSettings, Section, log_settings, open_file, unique_names
from ..tables.place import DELTA, FORMATS, ICEBERG, PARTITIONS

EVERY, BATCH_MIB = 10.0, 64
VARIANT_NAME = "variant"  # in place of a file with a schema


@dataclass(frozen=True)
class TableConfig:
    """A table, and the messages that are its rows.

    Attributes:
        name: under which the position is registered in Redis; unique.
        table: of Delta: directory or URL; of Iceberg: NAMESPACE.TABLE of the catalog.
        format: DELTA or ICEBERG.
        filters: topic filters.
        partition: of PARTITIONS, of the time at which the broker accepted a message.
        columns: of the payload; None: the payload is a binary column.
        options: of Delta: storage options, as for S3; of Iceberg: properties of the catalog.
    """

    name: str
    table: str
    format: str = DELTA
    filters: tuple[str, ...] = ("#",)
    partition: str = "day"
    columns: Columns | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LakeConfig:
    """The settings of `flockmq lake`: the log, and at least one table."""

    log: LogSettings
    tables: tuple[TableConfig, ...]


def load(path: Path) -> LakeConfig:
    """Read the file.

    Raises:
        ConfigError: it can't be read, or a key is unknown, missing or wrong.
    """
    file = open_file(path)
    log = log_settings(file, EVERY, BATCH_MIB)
    tables = tuple(_table(section) for section in file.sections("tables"))
    file.end()
    unique_names(file, "tables", [table.name for table in tables])
    return LakeConfig(log, tables)


def _table(section: Section) -> TableConfig:
    if not isinstance(section.given.get("table"), str):
        raise section.error('table is missing: a directory, "s3://BUCKET/PATH", or "NAMESPACE.TABLE"')
    table = section.text("table")
    kind = section.choice("format", FORMATS, DELTA)
    if kind == ICEBERG and "." not in table:
        raise section.error(f"table: an Iceberg table is NAMESPACE.TABLE, not {table!r}")
    made = TableConfig(
        name=section.text("name", table.rstrip("/").rpartition("/")[2]),
        table=table,
        format=kind,
        filters=section.filters(),
        partition=section.choice("partition", PARTITIONS, "day"),
        columns=_columns(section, kind),
        options=section.mapping("options"),
    )
    section.end()
    return made


def _columns(section: Section, kind: str) -> Columns | None:
    """The columns of the payload, as the key `schema` says."""
    if section.given.get("schema") != VARIANT_NAME:
        return section.columns()
    section.text("schema")
    if kind != DELTA:
        raise section.error("schema: VARIANT is for Delta tables", "PyIceberg does not write it yet")
    from .variant import VariantColumns  # needs DuckDB

    return VariantColumns()
