"""The common part of topic filters, and filters that add nothing."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq.broker.interest.filters import Rows, collapsed, intersection, reduced
from tests.model.topics import matches

PARTS = ["a", "b", "", "$s"]
TOPICS = ["/".join(levels) for n in (1, 2, 3) for levels in itertools.product(PARTS, repeat=n) if any(levels) or n > 1]
filters = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.sampled_from([*PARTS, "+"]), min_size=1, max_size=3),
    st.sampled_from([[], [], ["#"]]),
).filter(bool) | st.just("#")


@given(filters, filters)
def test_the_intersection_matches_what_both_match(one: str, other: str) -> None:
    found = intersection(one, other)
    expected = {topic for topic in TOPICS if matches(one, topic) and matches(other, topic)}
    assert expected == ({topic for topic in TOPICS if matches(found, topic)} if found is not None else set())


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ({"a/#": (), "a/b": ()}, ["a/#"]),
        ({"a/#": (), "a/b": ("B",)}, ["a/#"]),
        ({"a/#": ("C",), "a/b": ("B",)}, ["a/#", "a/b"]),  # C would not be asked for a/b in place of B
        ({"a/#": ("C",), "a/b": ("B", "C")}, ["a/#"]),
        ({"a/+": (), "a/b/c": (), "+/b": ()}, ["a/+", "a/b/c", "+/b"]),
    ],
)
def test_a_row_covers_another_for_brokers_on_its_path(rows: Rows, kept: list[str]) -> None:
    assert list(reduced(rows)) == kept


def test_too_many_rows_become_one_for_each_scope() -> None:
    rows: Rows = {"a": ("B", "D"), "b": ("C", "D"), "c": ("D",)}
    assert collapsed(rows, ["x/#", "y"]) == {"x/#": ("D",), "y": ("D",)}
    assert collapsed({**rows, "d": ()}, ["x/#"]) == {"x/#": ()}
