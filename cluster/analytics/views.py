"""The views for SQL: one for each table that the job writes, or one of the logs."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ...broker.errors import FlockError
from .compute.rows import NUMBER_MAX, number
from .output.files import Files
from .output.stored import stored
from .tables import TABLES


def views(spark: SparkSession, directory: str) -> None:
    """A view for each table below the job's output; tables without rows are empty views.

    Raises:
        FlockError: the directory does not exist, or has no output of the job.
    """
    files = Files(spark, directory)
    directory = directory.rstrip("/")
    if not files.exists(directory):
        raise FlockError(f"there is no directory {directory}", "name the directory of `flockmq analytics run --output`")
    found = {name: rows for name in TABLES if (rows := rows_of(spark, files, directory, name)) is not None}
    if not found and not files.exists(f"{directory}/_checkpoint"):
        raise FlockError(f"{directory} has nothing that `flockmq analytics run` wrote", "it has rates/, clients/, ...")
    for name in TABLES:
        view(found.get(name, nothing(spark, name)), name)


def rows_of(spark: SparkSession, files: Files, directory: str, name: str) -> DataFrame | None:
    """A table's rows; messages also have the columns of properties that the table, or its newest file, has. None: the
    table has no rows."""
    place = f"{directory}/{name}"
    found = stored(directory, name, files.exists)
    paths = files.glob(f"{place}/date=*/hour=*/*.parquet") if found is None else found.files
    if not paths:
        return None
    columns = f"{TABLES[name]}, date date, hour int"
    if name == "messages":
        newest = max(paths, key=lambda path: path.rpartition("/")[2])
        there = spark.read.parquet(newest).columns if found is None else found.columns
        known = {column.split()[0] for column in columns.split(", ")}
        columns += "".join(f", {more} string" for more in there if more not in known)
    reader = spark.read.schema(columns).option("basePath", place)
    return reader.parquet(*([place] if found is None else paths))


def nothing(spark: SparkSession, name: str) -> DataFrame:
    """A table without rows."""
    return spark.createDataFrame([], f"{TABLES[name]}, date date, hour int")


def log_view(spark: SparkSession, options: dict[str, str | None]) -> None:
    """The logs as `messages`."""
    from .source import register

    register(spark)
    given = {name: value for name, value in options.items() if value is not None}
    view(spark.read.format("flockmq").options(**given).load(), "messages")


def view(table: DataFrame, name: str) -> None:
    """A view; messages also have `text` (the payload if it is UTF-8) and `value` (if it is a number)."""
    if name == "messages":
        text = F.col("payload").cast("string")
        short = F.when(F.octet_length("payload") <= NUMBER_MAX, text)
        table = table.withColumns({"text": F.when(F.is_valid_utf8(text), text), "value": number(short)})
    table.createOrReplaceTempView(name)
