"""From messages to the rows that results are computed from: without payloads, but with their sizes and numbers.

Times are microseconds since 1970 here and in the job's own state; `stamped` converts them to timestamps when a result
is written.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, the usual name

from ..job_options import Options
from ..tables import TABLES
from . import filters

NUMBER = r"^\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*$"
NUMBER_MAX = 40  # bytes of a payload that may be a number


def slim(messages: DataFrame, options: Options) -> DataFrame:
    """node, at, window (its start), client_id, topic, qos, size, value and, with fields, named (field, value)."""
    at = F.unix_micros("accepted_at")
    columns = [
        F.col("node"),
        at.alias("at"),
        (at - F.pmod(at, F.lit(options.window))).alias("window"),
        F.col("client_id"),
        F.col("topic"),
        F.col("qos"),
        F.octet_length("payload").alias("size"),
    ]
    if options.results & {"numbers", "outliers"}:
        short = F.when(F.octet_length("payload") <= NUMBER_MAX, F.col("payload").cast("string"))
        columns.append(number(short).alias("value"))
        if options.fields:
            columns.append(F.array_compact(F.array(*[named(*field) for field in options.fields])).alias("named"))
    return messages.select(columns)


def number(text: Column) -> Column:
    """The finite number in a text, or NULL."""
    value = F.when(text.rlike(NUMBER), text.try_cast("double"))
    return F.when(F.abs(value) < F.lit(float("inf")), value)


def named(topic_filter: str, path: str) -> Column:
    """field and value for messages whose topic name matches and whose JSON document has a number there, or NULL."""
    text = F.col("payload").cast("string")
    value = number(F.get_json_object(text, path))
    matches = F.col("topic").rlike(filters.pattern(topic_filter)) & F.is_valid_utf8(text)
    return F.when(matches & value.isNotNull(), F.struct(F.lit(path).alias("field"), value.alias("value")))


def numbers(rows: DataFrame, options: Options) -> DataFrame:
    """node, at, window, client_id, topic, field, value: a row for each number in a payload."""
    columns = ["node", "at", "window", "client_id", "topic"]
    plain = rows.where("value is not null").select(*columns, F.lit("").alias("field"), "value")
    if not options.fields:
        return plain
    return plain.union(rows.where("size(named) > 0").select(*columns, F.inline("named")))


def stamped(result: DataFrame, name: str, options: Options) -> DataFrame:
    """A result for writing: its columns in order, microseconds as timestamps, `window` as start and end."""
    spark = result.sparkSession
    if "window" in result.columns:
        result = result.withColumns(
            {"window_start": F.col("window"), "window_end": F.col("window") + F.lit(options.window)}
        )
    types = dict(result.dtypes)
    columns = []
    for field in spark.createDataFrame([], TABLES[name]).schema.fields:
        column = F.col(field.name)
        if field.dataType.typeName() == "timestamp" and types[field.name] != "timestamp":
            column = F.timestamp_micros(column)
        columns.append(column.cast(field.dataType).alias(field.name))
    return result.select(columns)
