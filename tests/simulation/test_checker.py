"""The rules of a run: cases that a seed seldom has."""

import pytest

from loadtest.prove.history import Connecting, History, Published, Subscribed, Taken
from tests.simulation.checker import disordered


@pytest.mark.parametrize(
    ("before", "repeats", "wanted"),
    [
        (True, True, 0),  # it came before the subscription at first, and the visitor sees the repetition only
        (True, False, 1),
        (False, True, 1),
        (False, False, 1),
    ],
)
def test_order_of_a_visitor(before: bool, repeats: bool, wanted: int) -> None:
    history = History([Connecting("visitor", True)])
    first = Published("publisher", "t/0", b"1", 1)
    subscribed = Subscribed("visitor", "t/#", 1)
    for event in (first, subscribed) if before else (subscribed, first):
        history.add(event)
    history.add(Published("publisher", "t/0", b"2", 1))
    history.add(Taken("visitor", b"2"))
    if repeats:
        history.add(first)
    history.add(Taken("visitor", b"1"))
    assert len(disordered(history, {"visitor"})) == wanted
