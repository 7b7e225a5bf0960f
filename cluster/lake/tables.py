"""The tables of a configuration as targets of the log."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from ..analytics.log.offsets import format_offsets, parse_offsets
from ..follow.follower import Follower
from ..follow.target import Progress, Target, TargetError
from ..tables.formats import open_table
from ..tables.place import LAKE_WRITER, Place
from ..tables.table import TableError
from .config import LakeConfig, TableConfig


class LakeTable(Target):
    """A table: one commit has rows, and the position of the log behind them.

    Args:
        config: of the table.

    Raises:
        TargetError: the library of its format is not installed.
    """

    def __init__(self, config: TableConfig) -> None:
        self._name = config.table
        place = Place(config.table, LAKE_WRITER, partition=config.partition, options=config.options)
        with _as_target():
            self._table = open_table(config.format, place)

    def progress(self) -> Progress:
        with _as_target():
            number = self._table.number()
            note = self._table.note() if number else ""
        if number and not note:
            raise TargetError(
                f"{self._name}: the commits with the position of the log are gone from the history of the table",
                "start another table, or keep its log for longer (delta.logRetentionDuration)",
            )
        return Progress(number, parse_offsets(json.loads(note))) if number else Progress()

    def append(self, rows: pa.Table, progress: Progress) -> None:
        assert progress.offsets is not None
        with _as_target():
            self._table.append(rows, progress.number, json.dumps(format_offsets(progress.offsets)))

    def tidy(self) -> str:
        with _as_target():
            return self._table.tidy()


@contextmanager
def _as_target() -> Iterator[None]:
    try:
        yield
    except TableError as error:
        raise TargetError(error.message, error.hint) from None


def followers_of(lake: LakeConfig) -> list[Follower]:
    """A follower of the log for each table. Raises RedisAway: Redis does not reply."""
    return [
        Follower(
            lake.log,
            table.name,
            job=f"lake:{table.name}",
            filters=table.filters,
            columns=table.columns,
            target=LakeTable(table),
        )
        for table in lake.tables
    ]
