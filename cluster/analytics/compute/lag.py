"""Lag: the seconds from accepted to written, as p50, p99 and maximum per window and node."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

LAGS = "version bigint, window bigint, node string, lag bigint, messages bigint"
FINE = 10_000  # milliseconds; lags up to this are counted by millisecond, longer ones by second


def lags(rows: DataFrame, now: int) -> DataFrame:
    """Messages by window, node and lag in milliseconds; `now` is the time of writing, in microseconds."""
    milliseconds = F.greatest(F.floor((F.lit(now) - F.col("at")) / 1000), F.lit(0))
    coarse = F.floor(milliseconds / 1000) * 1000
    lag = F.when(milliseconds < FINE, milliseconds).otherwise(coarse).cast("bigint")
    return (
        rows.select("window", "node", lag.alias("lag"))
        .groupBy("window", "node", "lag")
        .agg(F.count("*").alias("messages"))
    )


def lag(parts: DataFrame) -> DataFrame:
    """The result, from the shares of the batches."""
    quantiles = F.percentile("lag", F.array(F.lit(0.5), F.lit(0.99)), F.col("messages"))
    return (
        parts.groupBy("window", "node")
        .agg(F.sum("messages").alias("messages"), quantiles.alias("of"), (F.max("lag") / 1000).alias("max"))
        .withColumns({"p50": F.col("of")[0] / 1000, "p99": F.col("of")[1] / 1000})
        .drop("of")
    )
