"""A Spark driver that returns messages: from the log below `in/`, through the sink, to `out/`. Killed by tests.

`python -m tests.analytics.circle_driver REDIS BROKER CHECKPOINT SIZE [--once]`: batches of so many bytes of the log.
"""

import os
import sys

from pyspark.sql import SparkSession

from flockmq.cluster.analytics.source import register


def main(redis: str, broker: str, checkpoint: str, size: str, *more: str) -> None:
    """Run until killed; with --once, until the log has no more rows."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2,8]").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.driver.memory", "800m").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    source = spark.readStream.format("flockmq").option("redis", redis).option("maxBytesPerTrigger", size)
    frame = source.option("topicFilter", "in/#").load().selectExpr("replace(topic, 'in/', 'out/') as topic", "payload")
    writer = frame.writeStream.format("flockmq").option("url", broker).option("delivery", "exactly-once")
    writer = writer.option("patience", "120").option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if more else writer).start()
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
