"""A state that changes only by a table."""

import logging
from enum import Enum

import pytest

from flockmq.broker.state_machine import ILLEGAL, IllegalTransition, StateMachine


class Door(Enum):
    OPEN = "open"
    SHUT = "shut"


class Act(Enum):
    PUSH = "it is pushed"
    LOCK = "it is locked"


def door() -> StateMachine[Door, Act]:
    return StateMachine("the door", {(Door.OPEN, Act.PUSH): Door.SHUT}, Door.OPEN)


def test_an_event_of_the_table_changes_the_state(caplog: pytest.LogCaptureFixture) -> None:
    machine = door()
    with caplog.at_level(logging.DEBUG, "flockmq.state"):
        machine.take(Act.PUSH)
    assert machine.state is Door.SHUT
    (record,) = caplog.records
    assert record.__dict__["values"] == {"of": "the door", "before": "open", "event": "it is pushed", "now": "shut"}


def test_another_event_is_a_fault_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    machine = door()
    with caplog.at_level(logging.ERROR, "flockmq.state"), pytest.raises(IllegalTransition, match="open: it is locked"):
        machine.take(Act.LOCK)
    assert machine.state is Door.OPEN
    assert [record.getMessage() for record in caplog.records] == [ILLEGAL]
