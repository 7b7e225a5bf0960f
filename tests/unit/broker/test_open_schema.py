"""The kind of a schema is found by its file; wrong files get an error with their name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flockmq.broker.schemas.avro import AvroSchema
from flockmq.broker.schemas.json_schema import JsonSchema
from flockmq.broker.schemas.open import open_schema
from flockmq.broker.schemas.payload_schema import Misfit
from flockmq.broker.schemas.protobuf import ProtobufSchema
from flockmq.broker.schemas.sparkplug import SparkplugSchema
from tests.harness.broker_process import environment
from tests.harness.descriptors import descriptor_set

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}]}).encode()
PROTOBUF = descriptor_set("message A\nint32 x\nmessage B\nstring y")
JSON = b'{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]}'


@pytest.mark.parametrize(
    ("name", "file", "data", "kind"),
    [
        ("a.json", "a.json", JSON, JsonSchema),
        ("a", "a", JSON, JsonSchema),
        ("a.json", "a.json", AVRO, AvroSchema),
        ("a.avsc", "a.avsc", AVRO, AvroSchema),
        ("a.desc#site.B", "a.desc", PROTOBUF, ProtobufSchema),
        ("a#site.A", "a", PROTOBUF, ProtobufSchema),
        ("a#1.json", "a#1.json", JSON, JsonSchema),
        ("./sparkplug", "sparkplug", JSON, JsonSchema),
        ("sparkplug", "sparkplug", JSON, SparkplugSchema),
    ],
)
def test_kinds(tmp_path: Path, name: str, file: str, data: bytes, kind: type) -> None:
    (tmp_path / file).write_bytes(data)
    assert type(open_schema(name, tmp_path)) is kind


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("none.json", None, "No such file"),
        ("a.proto", b'syntax = "proto3";', "protoc --include_imports"),
        ("a.desc", PROTOBUF, "one of site.A, site.B"),
        ("a.desc", b"{}", "no descriptor set"),
        ("a.json#site.A", JSON, "#site.A is for descriptor sets"),
        ("a.avsc", JSON, "no Avro schema"),
        ("a.json", b"{", "Expecting"),
        ("a.json", b"\xff\xfe", "utf-8"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, data: bytes | None, words: str) -> None:
    if data is not None:
        (tmp_path / name.partition("#")[0]).write_bytes(data)
    with pytest.raises(ValueError, match=words) as error:
        open_schema(name, tmp_path)
    assert str(error.value).startswith(str(tmp_path / name.partition("#")[0]))


def test_payloads_of_json() -> None:
    schema = JsonSchema(JSON.decode())
    schema.check(b' {"a": 0, "b": [1]} ')
    for payload, words in (
        (b'{"a": -1}', "a: -1 is less than"),
        (b"{}", "required"),
        (b"[]", "not of type"),
        (b"", "no JSON"),
        (b'{"a": NaN}', "NaN is no number of JSON"),
        (b'{"a": 1} {"a": 1}', "no JSON"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 100_000, "no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no JSON"),
    ):
        with pytest.raises(Misfit, match=words):
            schema.check(payload)


@pytest.mark.parametrize("text", ['{"type": "objekt"}', "[1]", '{"pattern": "("}', '{"$ref": "http://127.0.0.1:9/a"}'])
def test_no_json_schema(text: str) -> None:
    """A reference to another place is not followed: a node would wait for it."""
    with pytest.raises(ValueError, match="no JSON Schema"):
        JsonSchema(text).prepare()


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("a.avsc", "fastavro", "fastavro"),
        ("a.desc#site.A", "google.protobuf.descriptor_pb2", "protobuf"),
        ("sparkplug", "google.protobuf.descriptor_pb2", "protobuf"),
        ("a.json", "jsonschema_rs", "jsonschema-rs"),
    ],
)
def test_a_library_that_is_not_installed(tmp_path: Path, name: str, module: str, package: str) -> None:
    """The error names it: an executor of Spark may lack it, and a node without schemas needs none."""
    for file, data in (("a.avsc", AVRO), ("a.desc", PROTOBUF), ("a.json", JSON)):
        (tmp_path / file).write_bytes(data)
    script = f"""if True:
        import sys
        sys.modules[{module!r}] = None
        from pathlib import Path
        from flockmq.broker.schemas.open import open_schema
        open_schema({name!r}, Path({str(tmp_path)!r}), to_check=True)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment())
    assert f"needs the package {package} on this machine: pip install {package}" in done.stderr
