"""The life of a node: the transitions of the code stand in CLUSTER.md, and there are no others."""

import asyncio

import pytest

from flockmq.broker.lifecycle import TRANSITIONS, Event, Lifecycle, Phase
from flockmq.broker.state_machine import IllegalTransition
from tests.harness.transitions import documented


def serving() -> Lifecycle:
    lifecycle = Lifecycle("a")
    lifecycle.become_started()
    lifecycle.become_serving()
    return lifecycle


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    table = {(phase.value, event.value): after.value for (phase, event), after in TRANSITIONS.items()}
    assert documented("The life of a node") == table


def test_each_phase_is_reached_and_each_event_is_used() -> None:
    assert {Phase.STARTING, *TRANSITIONS.values()} == set(Phase)
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_a_node_rejoins_once_at_a_time() -> None:
    lifecycle = serving()
    assert lifecycle.become_fenced()
    assert not lifecycle.become_fenced()  # while it joins: that attempt fails
    lifecycle.become_started()
    assert lifecycle.become_fenced()
    assert lifecycle.has_started and not lifecycle.has_state


def test_a_node_that_ends_does_not_rejoin_and_waits_for_nothing() -> None:
    lifecycle = serving()
    lifecycle.stop()
    lifecycle.stop()  # a second signal
    assert lifecycle.phase is Phase.STOPPING and lifecycle.has_state
    assert not lifecycle.become_fenced()
    asyncio.run(asyncio.wait_for(lifecycle.until_closing(), 1))
    with pytest.raises(IllegalTransition):
        lifecycle.become_started()


def test_a_node_that_fails_ends_at_once() -> None:
    lifecycle = serving()
    failure = OSError("a test")
    lifecycle.fail(failure)
    assert lifecycle.phase is Phase.CLOSING and lifecycle.failure is failure
    asyncio.run(asyncio.wait_for(lifecycle.until_end(), 1))


def test_a_node_that_is_stopped_before_it_has_started_never_served() -> None:
    lifecycle = Lifecycle("a")
    lifecycle.stop()
    assert lifecycle.phase is Phase.ABANDONED and lifecycle.ends and not lifecycle.has_started
