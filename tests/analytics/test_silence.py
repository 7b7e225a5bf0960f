"""Devices from one batch to the next."""

from pyspark.sql import DataFrame, SparkSession

from flockmq.cluster.analytics.compute import silence
from flockmq.cluster.analytics.job_options import Options

SECOND = 1_000_000


def test_a_device_that_is_forgotten_is_no_longer_silent(spark: SparkSession) -> None:
    options = Options(output="", forget=100 * SECOND)
    devices = spark.createDataFrame([], silence.DEVICES)
    told = []

    def step(devices: DataFrame, seconds: range, clock: int) -> DataFrame:
        rows = [(client, 1000 * SECOND + second * SECOND, "n") for second in seconds for client in ("c", "")]
        new = silence.seen(spark.createDataFrame(rows, "client_id string, at bigint, node string"))
        found = silence.renewed(devices, new, (1000 + clock) * SECOND, options).collect()
        told.append([(event.event, event.since // SECOND - 1000) for row in found for event in row.events])
        return spark.createDataFrame([tuple(row)[:-1] for row in found], silence.DEVICES)

    for seconds, clock in ((range(10), 5), (range(0), 60), (range(0), 120), (range(0), 125), (range(130, 140), 135)):
        devices = step(devices, seconds, clock)
    assert told == [[], [("silent", 9)], [("forgotten", 9)], [], []]
    assert [(row.client_id, row.silent, len(row.marks)) for row in devices.collect()] == [("c", False, 10)]
    devices = step(step(devices, range(0), 180), range(200, 201), 200)
    assert told[-2:] == [[("silent", 139)], [("back", 139)]]
