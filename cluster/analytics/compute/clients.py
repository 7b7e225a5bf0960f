"""Per window and client: first and last message, messages, rate, longest gap."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def clients(cube: DataFrame, window: int) -> DataFrame:
    """`window` is its length in microseconds; `node` is the client's last one."""
    return (
        _batches(cube)
        .groupBy("window", "client_id")
        .agg(
            F.max_by("node", "last").alias("node"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.array_size(F.array_distinct(F.flatten(F.collect_list("names")))).cast("bigint").alias("topics"),
            (F.max("gap") / 1e6).alias("longest_gap"),
        )
        .withColumn("rate", F.col("messages") * F.lit(1e6) / F.lit(window))
    )


def _batches(cube: DataFrame) -> DataFrame:
    """A client's messages in each batch; the gap includes that to the batch before."""
    batches = cube.groupBy("window", "client_id", "version").agg(
        F.max_by("node", "last").alias("node"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("messages").alias("messages"),
        F.sum(F.col("size") * F.col("messages")).alias("bytes"),
        F.collect_set("topic").alias("names"),
        F.max("gap").alias("gap"),
    )
    before = F.lag("last").over(Window.partitionBy("window", "client_id").orderBy("first"))
    return batches.withColumn("gap", F.greatest("gap", F.col("first") - before))
