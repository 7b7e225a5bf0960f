"""The columns of payloads: thousands at once give the same as one by one."""

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flockmq.cluster.analytics.json_columns import JsonColumns

TYPES: dict[str, dict[str, object]] = {
    "a": {"type": "integer"},
    "b": {"type": "number"},
    "c": {"type": "string"},
    "d": {"type": "boolean"},
    "e": {"type": "array", "items": {"type": "integer"}},
}
SCHEMA = json.dumps({"type": "object", "properties": TYPES})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "b": st.floats(allow_nan=False, allow_infinity=False)
        | st.integers(-(10**300), 10**300).map(lambda number: int(float(number))),
        "c": st.text(),
        "d": st.booleans(),
        "e": st.lists(st.integers(-5, 5)),
        "other": JSON,
    },
)
PAYLOADS = st.one_of(
    FITTING.map(lambda value: json.dumps(value).encode()),
    FITTING.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "replace")),
    st.dictionaries(st.sampled_from([*TYPES, "x"]), JSON).map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=20),
    st.just(b'{"a": 1} {"a": 2}'),
)


@given(st.lists(PAYLOADS, min_size=1, max_size=8), st.lists(FITTING, max_size=3))
def test_many_at_once_are_as_each_alone(payloads: list[bytes], fine: list[dict[str, object]]) -> None:
    columns = JsonColumns(SCHEMA)
    every = [*payloads, *(json.dumps(value).encode() for value in fine)]
    table, unparsed = columns.decode(pa.array(every, pa.binary()))
    assert table.num_rows == len(unparsed) == len(every)
    for row, rest, payload in zip(table.to_pylist(), unparsed.to_pylist(), every, strict=True):
        alone, alone_rest = columns.decode(pa.array([payload], pa.binary()))
        assert row == alone.to_pylist()[0]
        assert rest == alone_rest.to_pylist()[0]
        assert rest in (None, payload)
        if rest is not None:
            assert set(row.values()) == {None}


@given(st.lists(FITTING, min_size=1, max_size=20))
def test_values_that_fit_are_there(values: list[dict[str, object]]) -> None:
    table, unparsed = JsonColumns(SCHEMA).decode(
        pa.array([json.dumps(value).encode() for value in values], pa.binary())
    )
    assert unparsed.null_count == len(values)
    for row, value in zip(table.to_pylist(), values, strict=True):
        assert {name: found for name, found in row.items() if found is not None} == {
            name: value[name] for name in TYPES if value.get(name) is not None
        }


def test_large_integers() -> None:
    """An integer that a float can have is a number; beside a payload that does not fit they are judged one by one."""
    columns = JsonColumns(SCHEMA)
    numbers = [2**53 + 1, 2**63, -(10**30), 10**400]
    payloads = [b"{", *(f'{{"b": {number}, "e": [1]}}'.encode() for number in numbers), b'{"a": 9223372036854775808}']
    table, unparsed = columns.decode(pa.array(payloads, pa.binary()))
    assert table["b"].to_pylist() == [None, 2.0**53, 2.0**63, -1e30, None, None]
    assert unparsed.to_pylist() == [payloads[0], None, None, None, *payloads[4:]]
