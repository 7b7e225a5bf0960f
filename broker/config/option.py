"""How a field of the schema is written: its default, its sentence, and the kind of its value."""

from dataclasses import field
from typing import TypeVar

from .kinds import Kind

T = TypeVar("T")

MIB = 1 << 20
COUNT_MAX = 2**31 - 1
SIZE_MAX = 1 << 40
DAY = 86400.0
CENTURY = 36_500 * DAY


def option(default: T, help: str, kind: Kind, *, reloadable: bool = False, flag: str = "") -> T:  # noqa: A002
    """A field with everything that is derived from it; typed as its default so that mypy checks the annotation."""
    metadata = {"help": help, "kind": kind, "reloadable": reloadable, "flag": flag}
    return field(default=default, metadata=metadata)
