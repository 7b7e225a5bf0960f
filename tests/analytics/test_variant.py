"""Tables of `flockmq lake` whose payloads are of the type VARIANT, as Spark reads them."""

from collections import Counter
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flockmq.broker.cli import main
from flockmq.cluster.lake.config import load
from flockmq.cluster.lake.tables import LakeTable
from tests.analytics.log_writer import LogWriter
from tests.harness.redis_process import RedisProcess

JSON = {'{"t": 1.5, "u": [1, {"x": "\u00e9"}]}': '{"t":1.5,"u":[1,{"x":"\u00e9"}]}', " 7 ": "7", '"x"': '"x"'}
NO_JSON = [b"warm", b"\xff", b"", b'"\\ud800"']


def test_any_json(spark: SparkSession, redis_server: RedisProcess, tmp_path: Path) -> None:
    """Spark reads the column that DuckDB and delta-rs have written, also after files were joined."""
    log = LogWriter(redis_server.client(decode_responses=False))
    path, place = tmp_path / "lake.toml", tmp_path / "table"
    path.write_text(f'redis = "{redis_server.url}"\n[[tables]]\ntable = "{place}"\nschema = "variant"\n')
    payloads = [*(text.encode() for text in JSON), b"null", *NO_JSON]
    for _ in range(2):
        log.add([log.row(n)._replace(payload=payload) for n, payload in enumerate(payloads)])
        assert main(["lake", str(path), "--once"]) == 0
    assert LakeTable(load(path).tables[0]).tidy()
    table = DeltaTable(place)
    assert "VariantType" in str(table.schema())
    unparsed = Counter(table.to_pyarrow_table()["unparsed"].to_pylist())
    assert unparsed == {None: 2 * len(JSON) + 2} | dict.fromkeys(NO_JSON, 2)
    frame = spark.read.schema("payload variant").parquet(*table.file_uris())
    found = frame.selectExpr("to_json(payload) as text", "try_variant_get(payload, '$.t', 'double') as t").collect()
    assert Counter(row.text for row in found) == {None: 2 * len(NO_JSON) + 2} | dict.fromkeys(JSON.values(), 2)
    assert Counter(row.t for row in found)[1.5] == 2
