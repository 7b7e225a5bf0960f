"""The excuses for a loss of data: they have gaps, or are too generous, without a finding that shows it."""

import pytest

from loadtest.prove import checker
from loadtest.prove.history import Connected, Connecting, Ended, Event, History
from tests.simulation.losses import Excuses, Loss, payloads
from tests.simulation.redis_types import Hash, List


def test_payloads_of_messages_that_are_not_done() -> None:
    """The checksum before a payload, in a user property, may end in letters."""
    queue: List = List()
    queue.append(b"*\x03\x00\x15\x00t/0&\x00\x08checksum\x00\x08609995dbpublisher 2/29")
    marks: Hash = Hash()
    marks[b"1"] = b"\x12\x04\x00willwill mortal 0 3"
    assert payloads({b"mq:q:a": queue, b"mq:in:a": marks}) == {b"publisher 2/29", b"will mortal 0 3"}


def untruthful(losses: list[Loss], events: list[tuple[int, Event]]) -> list[str]:
    history = History([event for _, event in events])
    return checker.untruthful(Excuses(history, [at for at, _ in events], losses, 0).history())


def connection(at: int, *, session_present: bool) -> list[tuple[int, Event]]:
    """A connection of a client from this nanosecond to the tenth after it."""
    return [
        (at, Connecting("keeper", False)),
        (at + 1, Connected("keeper", False, session_present)),
        (at + 10, Ended("keeper", "lost")),
    ]


LOSSES = [Loss(-1, 100, frozenset()), Loss(150, 300, frozenset())]


@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        ([(10, False), (160, False)], 0),  # the first loss took the session, the second one takes this connection
        ([(10, False), (160, False), (310, False)], 0),
        ([(110, False), (310, False)], 1),  # the session was made between the losses
        ([(110, False), (310, True)], 0),
        ([(160, False), (200, False)], 1),  # both within the second lost time: Redis has the session as yet
        ([(160, False), (200, True), (310, False)], 0),
    ],
)
def test_sessions_that_are_lost(places: list[tuple[int, bool]], wanted: int) -> None:
    events = [each for at, present in places for each in connection(at, session_present=present)]
    assert len(untruthful(LOSSES, events)) == wanted


def test_a_session_that_is_lost_while_connect_is_on_its_way() -> None:
    """Its node stood still, and reads CONNECT when Redis is back without the session (seed 501013)."""
    events = [*connection(10, session_present=False), (90, Connecting("keeper", False))]
    assert not untruthful(LOSSES[:1], [*events, (110, Connected("keeper", False, False))])
    assert untruthful(LOSSES[:1], [*events, (95, Connected("keeper", False, False))])
