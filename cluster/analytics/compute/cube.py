"""The cube: the share of a batch in each window, by node, client, topic name, QoS and payload size.

When a window is over, its results are computed from the cubes of all batches that had messages of it. So each message
is read once, and a pending window is small: a device that sends messages of one size to one topic takes one row per
batch, regardless of their number.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

CUBE = (
    "version bigint, window bigint, node string, client_id string, topic string, qos int, size int, messages bigint, "
    "first bigint, last bigint, gap bigint"
)


def cube(rows: DataFrame) -> DataFrame:
    """The cube of a batch, without its version; `gap` is the longest one before a message within window and batch."""
    # Sorted by a number first: client ids with a common prefix are slow to compare.
    before = F.lag("at").over(Window.partitionBy("hash", "client_id").orderBy("at"))
    gap = F.when(before >= F.col("window"), F.col("at") - before).otherwise(F.lit(0))
    return (
        rows.select("window", "node", "client_id", "topic", "qos", "size", "at", F.xxhash64("client_id").alias("hash"))
        .withColumn("gap", gap)
        .groupBy("hash", "window", "node", "client_id", "topic", "qos", "size")
        .agg(
            F.count("*").alias("messages"),
            F.min("at").alias("first"),
            F.max("at").alias("last"),
            F.max("gap").alias("gap"),
        )
        .drop("hash")
    )
