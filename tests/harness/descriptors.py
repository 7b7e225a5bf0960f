"""Descriptor sets of Protobuf, as protoc writes them, from a few lines; and their messages."""

from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

FIELD = descriptor_pb2.FieldDescriptorProto
IMPORTS = (timestamp_pb2, wrappers_pb2, struct_pb2)


def descriptor_set(source: str, *, syntax: str = "proto3", imports: bool = True) -> bytes:
    """The descriptor set of a file in the package `site`.

    Args:
        source: lines `message NAME`, `enum NAME VALUE...`, and of the message before them
            `[repeated|optional|required|oneof|map] TYPE NAME`; numbers are given in their order. A TYPE with capitals
            is a message or an enum, with its package. A map has texts as keys.
        syntax: of the file.
        imports: whether the files that it imports are in the set.
    """
    found = descriptor_pb2.FileDescriptorSet()
    for module in IMPORTS if imports else ():
        module.DESCRIPTOR.CopyToProto(found.file.add())
    names = [module.DESCRIPTOR.name for module in IMPORTS]
    file = found.file.add(name="site.proto", package="site", syntax=syntax, dependency=names)
    enums = set()
    for line in source.strip().splitlines():
        first, *rest = line.split()
        if first == "message":
            message = file.message_type.add(name=rest[0])
        elif first == "enum":
            enum = file.enum_type.add(name=rest[0])
            enums.add(f"site.{rest[0]}")
            for number, name in enumerate(rest[1:]):
                enum.value.add(name=name, number=number)
        else:
            label, kind, name = (first, *rest) if len(rest) == 2 else ("", first, *rest)
            _add(message, label, kind, name, enums)
    data: bytes = found.SerializeToString()
    return data


def _add(message: descriptor_pb2.DescriptorProto, label: str, kind: str, name: str, enums: set[str]) -> None:
    field = message.field.add(name=name, number=len(message.field) + 1, label=FIELD.LABEL_OPTIONAL)
    if label == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
        _add(entry, "", kind, "value", enums)
        field.label, field.type = FIELD.LABEL_REPEATED, FIELD.TYPE_MESSAGE
        field.type_name = f".site.{message.name}.{entry.name}"
        return
    if "." in kind:
        field.type_name = f".{kind}"
        field.type = FIELD.TYPE_ENUM if kind in enums else FIELD.TYPE_MESSAGE
    else:
        field.type = getattr(FIELD, f"TYPE_{kind.upper()}")
    if label == "repeated":
        field.label = FIELD.LABEL_REPEATED
    elif label == "required":
        field.label = FIELD.LABEL_REQUIRED
    elif label == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0
    elif label == "optional":
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def message(data: bytes, name: str) -> Any:
    """A message of a descriptor set, to be filled."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)  # type: ignore[no-untyped-call]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()  # type: ignore[no-untyped-call]
