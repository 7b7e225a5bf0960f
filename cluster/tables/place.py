"""Where a table is, and how it is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

DELTA, ICEBERG = "delta", "iceberg"
FORMATS = (DELTA, ICEBERG)
PARTITIONS = ("day", "hour", "none")
LAKE_WRITER = "flockmq-lake"  # names the commits of `flockmq lake`; their note has the position of the log


@dataclass(frozen=True)
class Place:
    """Where a table is, and how it is written.

    Attributes:
        table: of Delta: directory or URL; of Iceberg: NAMESPACE.TABLE of the catalog.
        writer: names the commits of one writer, such as `flockmq-lake`.
        time: the column with the time of a row.
        partition: of PARTITIONS, of `time`.
        options: of Delta: storage options, as for S3; of Iceberg: properties of the catalog.
        location: of an Iceberg table that is created: its directory; empty: the catalog chooses one.
    """

    table: str
    writer: str
    time: str = "accepted_at"
    partition: str = "day"
    options: Mapping[str, str] = field(default_factory=dict)
    location: str = ""
