"""`flockmq schema infer`: the schema of a sample fits the payloads of the sample."""

import json

import pytest

from flockmq.broker.cli import main
from flockmq.cluster.analytics.json_columns import parse_schema
from tests.analytics.log_writer import LogWriter
from tests.harness.redis_process import RedisProcess

NOW = "1 h ago"


def infer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["schema", "infer", *arguments])
    output = capsys.readouterr()
    return status, output.out, output.err


def test_types_ranges_and_shares(redis_server: RedisProcess, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogWriter(redis_server.client(decode_responses=False))
    payloads = [
        b'{"temp": 20, "id": 7, "name": "a", "at": {"x": 1}, "tags": ["b"], "none": null, "mixed": 1}',
        b'{"temp": 22.5, "id": -3, "name": "b", "at": {"x": 2, "y": true}, "tags": [], "mixed": "one"}',
        b'{"temp": null, "id": 9, "mixed": "two"}',
        b'{"temp": 1e400, "id": 8, "mixed": "three"}',
        b"no JSON",
        b'{"temp": NaN}',
        b"[1]",
    ]
    log.add([log.row(0)._replace(topic="site/1/temp", payload=payload) for payload in payloads])
    log.add([log.row(0)._replace(topic="other", payload=b'{"temp": "warm"}')])
    since = "2026-02-01T00:00Z"
    status, text, said = infer(capsys, "site/+/temp", "--redis", redis_server.url, "--since", since)
    assert status == 0, said
    assert "7 messages; 2 are no JSON, 1 no object" in said
    found = json.loads(text)["properties"]
    assert found["temp"] == {"type": "number", "minimum": 20, "maximum": 22.5, "description": "in 75.0 % of the sample"}
    assert found["id"] == {"type": "integer", "minimum": -3, "maximum": 9}
    assert found["at"]["properties"]["y"] == {"type": "boolean", "description": "in 50.0 % of the sample"}
    assert found["tags"]["items"] == {"type": "string"}
    assert found["mixed"]["type"] == "string"  # of most
    assert "none" not in found
    assert list(parse_schema(text)) == ["temp", "id", "name", "at", "tags", "mixed"]


def test_without_objects(redis_server: RedisProcess, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogWriter(redis_server.client(decode_responses=False))
    log.add([log.row(0)._replace(payload=b"21.5")])
    status, _, said = infer(capsys, "#", "--redis", redis_server.url, "--since", "2026-02-01T00:00Z")
    assert status != 0
    assert "has a JSON object as its payload" in said


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(capsys, "a/#/b", "--redis", "redis://h")[0] == 2
    assert infer(capsys, "a", "--since", "soon", "--redis", "redis://h")[0] == 2
