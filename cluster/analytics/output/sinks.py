"""Parquet files of a version: written aside, then renamed into place under names that contain the version."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ..tables import time_of
from .files import Files

LARGE = ("messages", "clients", "numbers")  # one file per task; of other tables one per hour


def below(path: str) -> str:
    """The path of a file below the directory of its table."""
    return "/".join(path.split("/")[-3:])


class Sink:
    """Writes files below a directory, for the job with this id."""

    def __init__(self, files: Files, output: str, job: str) -> None:
        self._files = files
        self._output = output
        self._job = job

    def write(self, name: str, rows: DataFrame, version: int) -> list[str]:
        """Add rows to a table; returns the paths of their files, none without rows."""
        staging = f"{self._output}/_staging/{name}"
        time = F.col(time_of(name))
        dated = rows.withColumns({"date": F.date_format(time, "yyyy-MM-dd"), "hour": F.hour(time)})
        if name not in LARGE:
            dated = dated.coalesce(1)
        dated.write.mode("overwrite").partitionBy("date", "hour").parquet(staging)
        paths = []
        for number, path in enumerate(self._files.glob(f"{staging}/date=*/hour=*/*.parquet")):
            *_, date, hour, _ = path.split("/")
            target = f"{self._output}/{name}/{date}/{hour}/{version:010}-{self._job}-{number}.parquet"
            self._files.rename(path, target)
            paths.append(target)
        return paths
