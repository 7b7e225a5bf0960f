"""Numeric payloads per window, topic name and field: count, mean, minimum, maximum, standard deviation.

A batch's part of a window has the squared distances from its own mean, so that parts add up without loss of digits. It
also has a sample of its values for the topic's history (`outliers.py`).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

VALUES = (
    "version bigint, window bigint, topic string, field string, count bigint, mean double, squares double, min double, "
    "max double, sample array<struct<at: bigint, value: double>>"
)
SAMPLE = 20  # values of a window that are kept, evenly spread


def parts(numbers: DataFrame) -> DataFrame:
    """The share of a batch."""
    seen = F.sort_array(F.collect_list(F.struct("at", "value")))
    return (
        numbers.groupBy("window", "topic", "field")
        .agg(
            F.count("*").alias("count"),
            F.mean("value").alias("mean"),
            (F.var_pop("value") * F.count("*")).alias("squares"),
            F.min("value").alias("min"),
            F.max("value").alias("max"),
            seen.alias("seen"),
        )
        .withColumn("sample", F.expr(spread("seen")))
        .drop("seen")
    )


def spread(array: str) -> str:
    """SQL for at most SAMPLE elements of an array, the first and every n-th after it."""
    return f"filter({array}, (x, i) -> i % cast(ceil(size({array}) / {SAMPLE}) as int) = 0)"


def values(batches: DataFrame) -> DataFrame:
    """The result, from the shares of the batches."""
    keys = ["window", "topic", "field"]
    totals = batches.groupBy(*keys).agg(
        F.sum("count").alias("count"),
        (F.sum(F.col("mean") * F.col("count")) / F.sum("count")).alias("mean"),
        F.min("min").alias("min"),
        F.max("max").alias("max"),
        F.collect_list(F.struct("count", "mean", "squares")).alias("of"),
    )
    squares = F.expr("aggregate(of, 0D, (sum, x) -> sum + x.squares + x.count * pow(x.mean - mean, 2))")
    stddev = F.when(F.col("count") > 1, F.sqrt(squares / (F.col("count") - 1)))
    return totals.withColumn("stddev", stddev).drop("of")
