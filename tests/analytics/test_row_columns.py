"""Columns of Protobuf, Avro and Sparkplug B: any bytes are a row, whose payload is in `unparsed` if it does not fit."""

import pickle
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq.cluster.analytics.columns import Columns
from flockmq.cluster.analytics.read_columns import read_columns
from tests.analytics import payload_kinds


def columns_of(kind: payload_kinds.PayloadKind) -> Columns:
    """As an executor gets them."""
    with tempfile.TemporaryDirectory() as folder:
        found: Columns = pickle.loads(pickle.dumps(read_columns(kind.write(Path(folder)))))
    return found


KINDS = {name: make() for name, make in payload_kinds.KINDS.items()}
COLUMNS = {name: columns_of(kind) for name, kind in KINDS.items()}


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """A payload with other bytes at a place."""
    at, size = draw(st.integers(0, len(payload))), draw(st.integers(0, 3))
    return payload[:at] + draw(st.binary(max_size=10)) + payload[at + size :]


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_any_bytes_are_a_row(kind: str, data: st.DataObject) -> None:
    fine = KINDS[kind].payload
    payloads = data.draw(st.lists(damaged(fine) | st.binary(max_size=40), max_size=5))
    table, unparsed = COLUMNS[kind].decode(pa.array([*payloads, fine], pa.binary()))
    assert table.num_rows == len(unparsed) == len(payloads) + 1
    assert unparsed[-1].as_py() is None
    for row, rest, payload in zip(table.to_pylist(), unparsed.to_pylist(), payloads, strict=False):
        assert rest in (None, payload)
        if rest is not None:
            assert set(map(repr, row.values())) == {"None"}
