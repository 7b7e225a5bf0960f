"""Opens the schema that a configuration names: the file says which kind it is."""

import json
from pathlib import Path

from .avro import AvroSchema
from .json_schema import JsonSchema
from .payload_schema import PayloadSchema
from .protobuf import ProtobufSchema
from .sparkplug import SparkplugSchema

SPARKPLUG = "sparkplug"
AVRO, PROTO = ".avsc", ".proto"
PROTOBUF = (".desc", ".pb", ".binpb", ".protoset")


def open_schema(name: str, folder: Path = Path(), *, to_check: bool = False) -> PayloadSchema:
    """The schema of a name.

    Args:
        name: `sparkplug`; or a file with JSON Schema, an Avro schema, or a descriptor set of Protobuf. For Protobuf
            `FILE#MESSAGE` names the message.
        folder: of a relative name.
        to_check: whether payloads will be checked, not made columns of: a fault of the schema is found at once.

    Raises:
        ValueError: the file can't be read, or it is no schema; the text begins with its name.
    """
    if name == SPARKPLUG:
        return SparkplugSchema()
    file, _, message = name.rpartition("#") if "#" in name and not (folder / name).is_file() else (name, "", "")
    path = folder / file
    try:
        schema = _open(path.suffix, path.read_bytes(), message)
        if to_check:
            schema.prepare()
        return schema
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


def _open(suffix: str, data: bytes, message: str) -> PayloadSchema:
    if suffix == PROTO:
        raise ValueError("a source; compile it: protoc --include_imports --descriptor_set_out=FILE.desc FILE.proto")
    if suffix in PROTOBUF or not (suffix in (AVRO, ".json") or _is_text(data)):
        return ProtobufSchema(data, message)
    if message:
        raise ValueError(f"#{message} is for descriptor sets of Protobuf, and this is JSON")
    text = data.decode()
    document = json.loads(text)
    if suffix == AVRO or (isinstance(document, dict) and document.get("type") == "record"):
        return AvroSchema(text)
    return JsonSchema(text)


def _is_text(data: bytes) -> bool:
    """Whether a file is text; a descriptor set has control characters."""
    try:
        return data.decode().replace("\n", "").replace("\r", "").replace("\t", "").isprintable()
    except UnicodeDecodeError:
        return False
