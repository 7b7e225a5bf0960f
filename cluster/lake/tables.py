"""The tables of a configuration, and their followers of the log."""

import pyarrow as pa

from ..follow.follower import Follower, schema_of
from ..follow.target import Target
from .config import DELTA, LakeConfig, TableConfig


def open_table(config: TableConfig, schema: pa.Schema) -> Target:
    """The table of a configuration. Its library is imported here: each needs one only."""
    if config.format == DELTA:
        from .delta import Delta

        return Delta(config, schema)
    from .iceberg import Iceberg

    return Iceberg(config, schema)


def followers_of(lake: LakeConfig) -> list[Follower]:
    """A follower of the log for each table. Raises RedisAway: Redis does not reply."""
    return [
        Follower(
            lake.log,
            table.name,
            job=f"lake:{table.name}",
            filters=table.filters,
            columns=table.columns,
            target=open_table(table, schema_of(table.columns)),
        )
        for table in lake.tables
    ]
