"""The excuses for a loss of data: they have gaps, or are too generous, without a finding that shows it."""

import pytest

from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.history import Connected, Connecting, Delivered, Ended, Event, History, Taken
from tests.simulation.losses import BACK, Excuses, Loss, payloads
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


def test_a_session_that_is_lost_while_connack_is_on_its_way() -> None:
    """The next CONNACK may be without the session (seed 1000147)."""
    crossing = [(90, Connecting("keeper", False)), (110, Connected("keeper", False, True))]
    events = [*connection(10, session_present=False), *crossing, (115, Ended("keeper", "lost"))]
    assert not untruthful(LOSSES[:1], [*events, *connection(120, session_present=False)])
    assert untruthful([], [*events, *connection(120, session_present=False)])


LOSS = Loss(50, 100, frozenset())


def received(at: int, payload: bytes, *, takes: bool, packet_id: int = 7) -> list[tuple[int, Event]]:
    """A message of QoS 2 comes to a subscriber, which takes it, or drops it as a repetition."""
    event = Delivered("subscriber", "t/0", payload, 2, packet_id, dup=False, retain=False)
    return [(at, event), *([(at, Taken("subscriber", payload))] if takes else [])]


@pytest.mark.parametrize(
    ("began", "admitted", "ended", "back", "ends", "excused"),
    [
        (10, 20, 120, 130, (), False),  # its node has seen the message, and gives it back
        (60, 65, 120, 130, (), True),  # its claim is lost, too
        (10, 65, 120, 130, (), True),  # likewise: CONNECT had waited (seed 32002227)
        (10, 20, 90, 130, (), True),  # its release may be
        (10, 20, 90, 95, (), True),  # and CONNACK comes after the death (seed 31037813)
        (10, 20, 120, 130, (40,), False),  # a node died before the loss
        (10, 20, 120, 130, (60,), True),  # perhaps its node, with the message
        (10, 20, 120, 130, (100 + BACK - 1,), True),
        (10, 20, 120, 130, (100 + BACK,), False),  # its node was back before
    ],
)
def test_a_packet_identifier_that_is_used_again(
    began: int, admitted: int, ended: int, back: int, ends: tuple[int, ...], *, excused: bool
) -> None:
    """The subscriber awaits PUBREL for a message that Redis has lost; the next one with its identifier is dropped."""
    events: list[tuple[int, Event]] = [
        (began, Connecting("subscriber", False)),
        (admitted, Connected("subscriber", False, True)),
        *received(70, b"publisher 0/1", takes=True),
        (ended, Ended("subscriber", "lost")),
        (back, Connecting("subscriber", False)),
        *received(140, b"publisher 0/2", takes=False),
    ]
    history = Excuses(History([event for _, event in events]), [at for at, _ in events], [LOSS], 1, ends).history()
    assert (Taken("subscriber", b"publisher 0/2") in history.events) == excused


def test_a_message_that_is_lost_before_the_loss_is_not_excused() -> None:
    """The identifier is used again in the lost time, by a node that has everything: it must have been free."""
    events: list[tuple[int, Event]] = [
        (60, Connecting("subscriber", False)),
        *received(70, b"publisher 0/1", takes=True),
        *received(80, b"publisher 0/2", takes=False),
    ]
    history = Excuses(History([event for _, event in events]), [at for at, _ in events], [LOSS], 1).history()
    assert Taken("subscriber", b"publisher 0/2") not in history.events


@pytest.mark.parametrize(
    ("first", "second", "packet_id"),
    [
        (40, b"publisher 0/2", 7),  # the first message came before the loss
        (70, b"publisher 0/1", 7),  # the same one comes again
        (70, b"publisher 0/2", 8),  # the identifier is another
    ],
)
def test_other_repetitions_are_not_excused(first: int, second: bytes, packet_id: int) -> None:
    events: list[tuple[int, Event]] = [
        (30, Connecting("subscriber", False)),
        *received(first, b"publisher 0/1", takes=True),
        (90, Ended("subscriber", "lost")),
        (130, Connecting("subscriber", False)),
        *received(140, second, takes=False, packet_id=packet_id),
    ]
    history = Excuses(History([event for _, event in events]), [at for at, _ in events], [LOSS], 1).history()
    assert [event for event in history.events if isinstance(event, Taken)] == [Taken("subscriber", b"publisher 0/1")]


def test_a_message_that_is_taken_counts_once() -> None:
    events: list[tuple[int, Event]] = [
        (60, Connecting("subscriber", False)),
        *received(70, b"publisher 0/1", takes=True),
        (120, Ended("subscriber", "lost")),
        (130, Connecting("subscriber", False)),
        *received(140, b"publisher 0/2", takes=True),
    ]
    history = Excuses(History([event for _, event in events]), [at for at, _ in events], [LOSS], 1).history()
    assert history.events.count(Taken("subscriber", b"publisher 0/2")) == 1


@pytest.mark.parametrize(
    "losses", [[Loss(50, 100, frozenset()), Loss(250, 300, frozenset())], [Loss(250, 300, frozenset())]]
)
@pytest.mark.parametrize(
    ("admitted", "back", "excused"), [(20, 310, True), (20, 150, False), (210, 310, False), (210, 150, False)]
)
def test_a_packet_identifier_that_is_used_again_after_two_deaths(
    losses: list[Loss], admitted: int, back: int, *, excused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without a link from one death of Redis to the next gives nothing back; else the client was admitted."""
    monkeypatch.setattr("tests.simulation.losses.NOTED", 20)
    events: list[tuple[int, Event]] = [
        (10, Connecting("subscriber", False)),
        (admitted, Connected("subscriber", False, True)),
        *received(260, b"publisher 0/1", takes=True),
        (320, Ended("subscriber", "lost")),
        (330, Connecting("subscriber", False)),
        (340, Connected("subscriber", False, True)),
        *received(350, b"publisher 0/2", takes=False),
    ]
    times = [at for at, _ in events]
    kept, backs = History([event for _, event in events]), [[140, 310], [back]]
    history = Excuses(kept, times, losses, 1, deaths=(100, 300), backs=backs).history()
    assert (Taken("subscriber", b"publisher 0/2") in history.events) == excused


@pytest.mark.parametrize(("times", "excused"), [(2, True), (3, True), (4, False)])
def test_a_will_may_come_once_more_for_each_loss(times: int, *, excused: bool) -> None:
    will = b"will mortal 0 1"
    losses = [Loss(50, 100, frozenset([will])), Loss(250, 300, frozenset([will]))]
    excuses = Excuses(History([]), [], losses, 0)
    assert excuses.excuses_will(f"I6 the will {will!r} came {times} times") == excused
