"""The file of `flockmq connect`, its mistakes, and its figures."""

import urllib.request
from pathlib import Path

import pytest
import redis

from flockmq.broker.cli import main
from flockmq.broker.errors import ConfigError
from flockmq.cluster.connect.dead_letters import DeadLetters
from flockmq.cluster.connect.pipe import connector_of, load
from tests.analytics.log_writer import LogWriter
from tests.connect.pipe_file import Process, pipe_file
from tests.harness.ports import free_port
from tests.harness.redis_process import RedisProcess

HEAD = 'redis = "redis://h"\n[[pipes]]\nname = "p"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected either redis or log"),
        ('redis = "redis://h"', r"no \[\[pipes\]\]"),
        ('redis = "redis://h"\n[[pipes]]\n[pipes.mqtt]', "name is missing"),
        (
            HEAD.replace('"p"', '"a/b"') + "[pipes.mqtt]",
            "name: expected letters of ASCII, digits, and . _ -, not 'a/b'",
        ),
        (HEAD, "a pipe has one target"),
        (HEAD + "[pipes.mqtt]\n[pipes.kafka]", "a pipe has one target"),
        (HEAD + "[pipes.oracle]", "a pipe has one target"),
        (HEAD + 'sql = ""\n[pipes.mqtt]', "sql: expected one statement, a select"),
        (HEAD + 'sql = "create table t (a int)"\n[pipes.mqtt]', "sql: expected one statement, a select"),
        (HEAD + 'sql = "select 1; select 2"\n[pipes.mqtt]', "sql: expected one statement, a select"),
        (HEAD + 'sql = "select 1 as a, 2 as a"\n[pipes.mqtt]', "two columns have the name a"),
        (HEAD + 'sql = "select interval 1 day as i"\n[pipes.mqtt]', "the type of the column i: make it a text"),
        (HEAD + 'sql = "selec 1"\n[pipes.mqtt]', "sql: Parser Error"),
        (HEAD + 'sql = "select nothing from messages"\n[pipes.mqtt]', "sql: Binder Error"),
        (HEAD + 'sql = "select topic from messages"\n[pipes.mqtt]\nurl = "mqtt://h"', "no column payload"),
        (HEAD + "[pipes.mqtt]", "url is missing"),
        (HEAD + '[pipes.mqtt]\nurl = "http://h"', "expected a URL such as mqtt"),
        (HEAD + '[pipes.mqtt]\nurl = "mqtt://h"\nqos = 3', "qos: expected a whole number, from 0 to 2"),
        (HEAD + '[pipes.mqtt]\nurl = "mqtt://h"\nretained = true', "unknown key retained"),
        (HEAD + '[pipes.postgresql]\nurl = "postgresql://h"', "table is missing"),
        (HEAD + '[pipes.postgresql]\nurl = "postgresql://h"\ntable = "t"\nkey = "k"', "no column k"),
        (HEAD + '[pipes.influxdb]\nurl = "http://h"\norg = "o"', "bucket is missing"),
        (HEAD + '[pipes.influxdb]\nurl = "h"\norg = "o"\nbucket = "b"', "no URL of http"),
        (HEAD + '[pipes.influxdb]\nurl = "http://h"\nversion = "4"', "expected 1, 2 or 3, not '4'"),
        (HEAD + '[pipes.webhook]\nurl = "http://h"\nsecret = "whsec_é"', "behind whsec_ comes base64"),
        (HEAD + '[pipes.postgresql]\nurl = "postgresql://${NO_SUCH}"\ntable = "t"', "NO_SUCH is not set"),
        (
            HEAD + '[pipes.postgresql]\nurl = "postgresql://u:a b@h/d"\ntable = "t"',
            "url: no connection string of libpq",
        ),
        (HEAD + '[pipes.mqtt]\nurl = "mqtt://h"\n' * 1 + HEAD[HEAD.index("[[") :] + "[pipes.mqtt]", "two pipes"),
    ],
)
def test_mistakes(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "pipes.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        config = load(path)
        for pipe in config.pipes:
            connector_of(pipe, config.log, DeadLetters(pipe.name, pipe.dead_letters))


def test_a_password_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_PASSWORD", "x y")
    path = tmp_path / "pipes.toml"
    path.write_text(
        HEAD + '[pipes.kafka]\nbrokers = "h"\ntopic = "t"\nproperties = {sasl.password = "${FLEET_PASSWORD}"}'
    )
    assert load(path).pipes[0].options.mapping("properties") == {"sasl.password": "x y"}


def test_figures(redis_server: RedisProcess, client: redis.Redis, tmp_path: Path) -> None:
    LogWriter(client).fill(3)
    port = free_port()
    path = pipe_file(
        tmp_path, redis_server, "webhook", {"url": "http://127.0.0.1:1/?key=hidden"}, metrics=f"127.0.0.1:{port}"
    )
    process = Process(path)
    process.wait_for(b"the target waits")
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    process.process.terminate()
    assert process.process.wait(30) == 0
    assert b"hidden" not in process.log.read_bytes()
    assert 'flockmq_pipe_failures_total{pipe="fleet"} 1' in text
    assert 'flockmq_pipe_messages_total{pipe="fleet"} 0' in text


def test_the_log_is_kept_for_a_pipe(
    redis_server: RedisProcess, client: redis.Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The position of the pipe is in the list of readers."""
    LogWriter(client).fill(3)
    path = pipe_file(tmp_path, redis_server, "webhook", {"url": "http://127.0.0.1:1/"})
    process = Process(path)
    process.wait_for(b"the target waits")
    process.kill()
    assert client.hexists("mq:analytics:jobs", "connect:fleet")
    capsys.readouterr()
    assert main(["cluster", "status", "--redis", redis_server.url]) == 0
    assert "connect:fleet" in capsys.readouterr().out
