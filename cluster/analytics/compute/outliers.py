"""Values far from the usual values of their topic, by robust z-score.

A topic's history is its last HISTORY values from windows that are over, at most `values.SAMPLE` of each. So the history
of a busy topic covers some windows, the history of a rare one some days. Median and MAD are robust against outliers in
it. If most values are equal, the MAD is 0, and the spread is the mean distance instead. The spread is always at least a
thousandth of the median.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from .values import spread

HISTORY = 100  # values
LEAST = 20  # values; a shorter history gives no score
TO_SIGMA = 1.4826  # times MAD is the standard deviation of normal values
MEAN_TO_SIGMA = 1.2533  # times the mean distance likewise
HISTORIES = (
    "topic string, field string, last bigint, history array<struct<at: bigint, value: double>>, median double, "
    "spread double"
)


def outliers(numbers: DataFrame, histories: DataFrame, most: float) -> DataFrame:
    """The numbers whose absolute score is `most` or above."""
    known = histories.where("spread is not null").select("topic", "field", "median", "spread")
    scored = numbers.join(known, ["topic", "field"]).withColumn("score", F.expr("(value - median) / spread"))
    return scored.where(F.abs("score") >= most).withColumn("accepted_at", F.col("at"))


def renewed(histories: DataFrame, batches: DataFrame, forgotten: int) -> DataFrame:
    """The histories with the parts of windows that are over; topics without a number since `forgotten` are dropped."""
    windows = (
        batches.groupBy("topic", "field", "window")
        .agg(F.sort_array(F.flatten(F.collect_list("sample"))).alias("seen"))
        .withColumn("sample", F.expr(spread("seen")))
        .groupBy("topic", "field")
        .agg(F.sort_array(F.flatten(F.collect_list("sample"))).alias("new"))
    )
    joined = histories.select("topic", "field", "history").join(windows, ["topic", "field"], "full_outer")
    history = f"slice(reverse(array_sort(concat({_or_empty('history')}, {_or_empty('new')}))), 1, {HISTORY})"
    return (
        joined.select("topic", "field", F.expr(history).alias("history"))
        .withColumn("last", F.expr("history[0].at"))
        .where(F.col("last") >= forgotten)
        .withColumn("of", F.expr("array_sort(transform(history, x -> x.value))"))
        .withColumn("median", F.expr(f"case when size(of) >= {LEAST} then {median('of')} end"))
        .withColumn("of", F.expr("array_sort(transform(of, x -> abs(x - median)))"))
        .withColumn("mean", F.expr("aggregate(of, 0D, (sum, x) -> sum + x) / size(of)"))
        .withColumn("mad", F.expr(median("of")))
        .withColumn("spread", F.expr(f"case when mad > 0 then {TO_SIGMA} * mad else {MEAN_TO_SIGMA} * mean end"))
        .withColumn("spread", F.expr("if(median is null, null, greatest(spread, abs(median) / 1000, 1e-9))"))
        .select("topic", "field", "last", "history", "median", "spread")
    )


def median(ordered: str) -> str:
    """SQL for the median of a sorted array."""
    return f"({ordered}[(size({ordered}) - 1) div 2] + {ordered}[size({ordered}) div 2]) / 2"


def _or_empty(array: str) -> str:
    return f"coalesce({array}, cast(array() as array<struct<at: bigint, value: double>>))"
