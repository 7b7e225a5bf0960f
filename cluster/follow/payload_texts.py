"""Payloads as texts."""

from collections.abc import Callable

import pyarrow as pa


def texts_of(values: pa.ChunkedArray, other: Callable[[bytes], str | None]) -> pa.ChunkedArray:
    """Bytes as text; `other` makes the text of bytes that are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_text(value, other) for value in values.to_pylist()], pa.string())])


def _text(value: bytes | None, other: Callable[[bytes], str | None]) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None if value is None else other(value)
