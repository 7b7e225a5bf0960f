"""Spark Connect: the package goes to the server as an artifact, and the source and the sink work as elsewhere."""

import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.cli import main
from tests.analytics.log_writer import LogWriter
from tests.analytics.standalone import StandaloneSpark
from tests.harness.broker_process import BrokerProcess
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient

PAGE = Path("deploy/docs/analytics.md").read_text("utf-8")
(SESSION,) = (one for one in re.findall(r"```python\n(.*?)```", PAGE, re.S) if ".remote(" in one)
# The client has FlockMQ from the package, and starts a server whose Python has Arrow and nothing of FlockMQ.
CLIENT = (
    """
import json, shutil, sys
package, later, redis, broker, place = sys.argv[1:]
sys.path.insert(0, package)
from pyspark.sql import SparkSession
from flockmq.cluster.analytics.source import register

"""
    + SESSION.replace("sc://10.0.0.9:15002", "local[1]").replace('"flockmq-analytics.zip"', "package")
    + """
spark.conf.set("spark.sql.shuffle.partitions", "1")
messages = spark.read.format("flockmq").option("redis", redis).load()
counts = messages.groupBy("topic").count().persist()
results = counts.selectExpr("concat('counts/', topic) as topic", "cast(count as string) as payload", "true as retain")
results.write.format("flockmq").option("url", broker).mode("append").save()
found = {row.topic: row["count"] for row in counts.collect()}

shutil.copy(package, later)  # on the server's PYTHONPATH
stream = spark.readStream.format("flockmq").option("redis", redis).option("maxBytesPerTrigger", "40k").load()
query = (stream.writeStream.format("parquet").option("checkpointLocation", place + "/checkpoint")
    .trigger(availableNow=True).start(place + "/rows"))
query.awaitTermination()
rows = [bytes(row.payload).decode() for row in spark.read.parquet(place + "/rows").collect()]
print("RESULT " + json.dumps({"counts": found, "payloads": sorted(rows), "batches": len(query.recentProgress)}))
spark.stop()
"""
)


def test_source_and_sink_through_spark_connect(redis_server: RedisProcess, tmp_path: Path) -> None:
    rows = LogWriter(redis_server.client(decode_responses=False)).fill(30, rows=20)
    package, later = tmp_path / "flockmq-analytics.zip", tmp_path / "later.zip"
    assert main(["analytics", "package", str(package)]) == 0
    environment = StandaloneSpark(tmp_path).environment
    environment["PYTHONPATH"] += f":{later}"
    with closing(BrokerProcess(tmp_path).start()) as broker:
        arguments = [str(package), str(later), redis_server.url, f"mqtt://127.0.0.1:{broker.port}", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        wanted = Counter(row.topic for row in rows)
        with SocketClient(broker.port, "device") as client:
            client.subscribe(("counts/#", 1))
            got = [client.receive() for _ in wanted]
    result = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))[7:])
    assert result["counts"] == wanted
    assert result["payloads"] == sorted(row.payload.decode() for row in rows) and result["batches"] >= 2
    counts = {packet.topic_name: packet.payload for packet in got if isinstance(packet, Publish)}
    assert counts == {f"counts/{topic}": b"%d" % count for topic, count in wanted.items()}
