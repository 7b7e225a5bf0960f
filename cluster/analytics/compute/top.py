"""Per window: the clients, or the topic names, with the most messages."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def top(cube: DataFrame, what: str, most: int) -> DataFrame:
    """`what` is client_id or topic. Ties rank by bytes, then by name; `share` is the part of the window's messages."""
    totals = cube.groupBy("window", what).agg(
        F.sum("messages").alias("messages"), F.sum(F.col("size") * F.col("messages")).alias("bytes")
    )
    window = Window.partitionBy("window")
    order = window.orderBy(F.desc("messages"), F.desc("bytes"), what)
    return (
        totals.withColumn("share", F.col("messages") / F.sum("messages").over(window))
        .withColumn("rank", F.row_number().over(order))
        .where(F.col("rank") <= most)
    )
