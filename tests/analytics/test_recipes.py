"""deploy/docs/recipes.md: its blocks are run from the first to the last, and show what stands below them."""

import re
import shlex
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.cli import main
from tests.analytics.written_logs import WrittenLog, row
from tests.harness.broker_process import BrokerProcess
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient

PAGE = Path("deploy/docs/recipes.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.S)
MINUTE = 60_000_000


def write_messages(redis_server: RedisProcess) -> None:
    """An hour of two pumps, of which one pauses."""
    began = round(time.time() * 1e6) - 2 * 60 * MINUTE
    log = WrittenLog(redis_server, "n1", "a")
    times = {"pump-17": [*range(10), *range(30, 35)], "pump-18": range(60)}
    for minute in range(60):
        for client, minutes in times.items():
            if minute in minutes:
                celsius = 20.5 + (minute % 5 if client == "pump-17" and minute < 30 else 0)
                celsius += 2 * (client == "pump-17" and minute >= 30)
                payload = b'{"celsius": %.1f, "on": true}' % celsius
                log.write([row(began + minute * MINUTE, f"plant/{client}/state", payload, client)])


def test_the_recipes(
    spark: SparkSession,
    redis_server: RedisProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_messages(redis_server)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"spark": spark}
    outputs = 0
    with closing(BrokerProcess(tmp_path).start()) as broker, ExitStack() as after:
        after.callback(spark.conf.unset, "spark.sql.streaming.stateStore.providerClass")
        for kind, block in BLOCKS:
            code = block.replace("redis://10.0.0.5:6379", redis_server.url).replace("/srv", str(tmp_path))
            code = code.replace("mqtt://10.0.0.5:1883", f"mqtt://127.0.0.1:{broker.port}")
            if kind == "python":
                exec(code, names)
            elif kind == "toml":
                Path("lake.toml").write_text(code)
            elif kind == "sh":
                line, _, target = code.strip().partition(" > ")
                assert main(shlex.split(line)[1:]) == 0
                shown = capsys.readouterr().out
                if target:
                    Path(target).write_text(shown)
            else:
                shown = capsys.readouterr().out if block[0] != "t" else retained(broker.port)
                assert [line.rstrip() for line in shown.strip().splitlines()] == block.strip().splitlines()
                outputs += 1
    assert outputs == 5


def retained(port: int) -> str:
    """The retained messages below twin/."""
    with SocketClient(port, "reader") as client:
        client.subscribe(("twin/#", 1))
        found = [client.receive() for _ in range(2)]
    return "\n".join(
        sorted(f"{one.topic_name} {one.payload.decode()}" for one in found if isinstance(one, Publish) and one.retain)
    )
