"""Per window, topic prefix and node: messages, bytes, publishers, sizes, QoS shares."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def rates(cube: DataFrame, depth: int) -> DataFrame:
    """The prefix is the first `depth` levels of the topic name. Quantiles and publishers are exact."""
    messages = F.sum("messages")
    shares = [
        (F.sum(F.when(F.col("qos") == qos, F.col("messages")).otherwise(0)) / messages).alias(f"qos_{qos}")
        for qos in (0, 1, 2)
    ]
    return (
        cube.withColumn("prefix", F.substring_index("topic", "/", depth))
        .groupBy("window", "prefix", "node")
        .agg(
            messages.alias("messages"),
            F.sum(F.col("size") * F.col("messages")).alias("bytes"),
            F.count_distinct("client_id").alias("publishers"),
            F.percentile("size", F.array(F.lit(0.5), F.lit(0.9), F.lit(0.99)), F.col("messages")).alias("sizes"),
            F.max("size").alias("size_max"),
            *shares,
        )
        .withColumns({f"size_p{name}": F.col("sizes")[at] for at, name in enumerate((50, 90, 99))})
        .drop("sizes")
    )
