"""The state of a node in its cluster: the transitions of the code stand in CLUSTER.md, and there are no others."""

import pytest

from flockmq.broker.state_machine import IllegalTransition
from flockmq.cluster.state import TRANSITIONS, Event, Membership, State
from tests.harness.transitions import documented


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    table = {(state.value, event.value): after.value for (state, event), after in TRANSITIONS.items()}
    assert documented("The state of a node") == table


def test_each_state_is_reached_and_each_event_is_used() -> None:
    assert {State.JOINING, *TRANSITIONS.values()} == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_a_node_that_is_not_a_member_has_no_link_to_lose() -> None:
    membership = Membership("a", print)
    membership.become_ready()
    with pytest.raises(IllegalTransition, match="a is ready: its link is lost"):
        membership.lose_link()
    assert membership.state is State.READY and membership.has_link


def test_a_node_is_fenced_once() -> None:
    fenced: list[tuple[str, State]] = []
    membership = Membership("a", lambda reason, before: fenced.append((reason, before)))
    membership.become_ready()
    membership.become_member()
    membership.become_fenced("first")
    membership.become_fenced("second")
    assert fenced == [("first", State.MEMBER)]
    assert membership.is_over and membership.why_fenced == "first" and not membership.has_link


def test_a_node_that_has_left_is_not_fenced() -> None:
    fenced: list[str] = []
    membership = Membership("a", lambda reason, before: fenced.append(reason))
    membership.become_left()
    membership.become_fenced("late")
    assert membership.state is State.LEFT and not fenced
