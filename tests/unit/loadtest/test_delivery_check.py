"""Findings by the numbers of streams: losses, duplicates, wrong order; and streams without a finding."""

from collections import Counter

import pytest

from flockmq._speedups.codec.packets import Publish
from flockmq.loadtest.swarm import payload_header
from flockmq.loadtest.swarm.delivery_check import DeliveryCheck, Subscriber
from flockmq.loadtest.swarm.streams import Published


class Pair:
    """A publisher and a subscriber of a topic, in two processes, and a network between them."""

    def __init__(self, *, qos: int = 1, filter_qos: int = 2, persistent: bool = False) -> None:
        self.faults: Counter[tuple[str, str]] = Counter()
        self.sender, self.receiver = (DeliveryCheck(process, 0.0, self.report) for process in (0, 1))
        self.qos = min(qos, filter_qos)
        self.subscriber = self.receiver.subscriber("c", "t/+", filter_qos, persistent=persistent)
        self.published = self.sender.publisher("t/1", qos)

    def report(self, name: str, fault: str, count: int) -> None:
        self.faults[name, fault] += count

    def publish(self, *, acknowledged: bool = True) -> bytes:
        now = payload_header.now()
        number = self.published.next(now)
        if acknowledged:
            self.published.unacknowledged.discard(number)
        return payload_header.payload(self.published.stream, number, 20, now)

    def deliver(self, *payloads: bytes, dup: bool = False) -> None:
        for payload in payloads:
            header = payload_header.read(payload)
            assert header is not None
            self.subscriber.observe(header, Publish("t/1", payload, self.qos, dup=dup), payload_header.now())

    def settle(self) -> dict[tuple[str, str], int]:
        """The end of the test; returns the faults."""
        self.receiver.check_gaps()
        self.receiver.report_lost(self.receiver.expected(self.sender.summaries()))
        return dict(self.faults)


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.subscriber.subscribed(session_present=False)
    return pair


def test_all_is_well(pair: Pair) -> None:
    pair.deliver(*(pair.publish() for _ in range(100)))
    assert pair.settle() == {}


@pytest.mark.parametrize("lost", [{0}, {1}, {4}, {0, 1, 2, 3, 4}, {0, 2, 4}])
def test_a_lost_message_is_found_wherever_it_is(pair: Pair, lost: set[int]) -> None:
    messages = [pair.publish() for _ in range(5)]
    pair.deliver(*(message for number, message in enumerate(messages) if number not in lost))
    assert pair.settle() == {("deliver qos1", "lost"): len(lost)}


def test_a_gap_is_lost_while_the_test_runs_and_counted_once(pair: Pair) -> None:
    messages = [pair.publish() for _ in range(3)]
    pair.deliver(messages[0], messages[2])
    assert pair.faults == {}
    pair.receiver.check_gaps()
    assert pair.faults == {("deliver qos1", "lost"): 1}
    assert pair.settle() == {("deliver qos1", "lost"): 1}


def test_order_and_duplicates(pair: Pair) -> None:
    one, two, three = (pair.publish() for _ in range(3))
    pair.deliver(one, three, two)
    assert pair.faults == {("deliver qos1", "out of order"): 1}
    pair.deliver(two)
    assert pair.settle() == {("deliver qos1", "out of order"): 1, ("deliver qos1", "duplicate"): 1}


def test_the_first_to_come_may_be_out_of_order_too(pair: Pair) -> None:
    one, two, three = (pair.publish() for _ in range(3))
    pair.deliver(three, one, two)
    assert pair.settle() == {("deliver qos1", "out of order"): 2}


def test_what_was_sent_twice_may_come_twice(pair: Pair) -> None:
    one, two = pair.publish(), pair.publish()
    pair.deliver(one, payload_header.mark_resent(one), two)
    pair.deliver(two, dup=True)
    three = pair.publish()
    pair.deliver(payload_header.mark_resent(three), three)
    assert pair.settle() == {}


def test_dup_excuses_nothing_at_qos_2() -> None:
    pair = Pair(qos=2)
    pair.subscriber.subscribed(session_present=False)
    message = pair.publish()
    pair.deliver(message)
    pair.deliver(message, dup=True)
    assert pair.settle() == {("deliver qos2", "duplicate"): 1}


def test_what_was_not_acknowledged_is_not_expected_and_told(pair: Pair) -> None:
    pair.deliver(pair.publish())
    pair.publish(acknowledged=False)
    pair.sender.report_unacknowledged()
    assert pair.settle() == {("publish qos1", "not acknowledged"): 1}


@pytest.mark.parametrize(("qos", "filter_qos"), [(0, 2), (1, 0)])
def test_qos_0_promises_nothing_but_gaps_are_told(qos: int, filter_qos: int) -> None:
    pair = Pair(qos=qos, filter_qos=filter_qos)
    pair.subscriber.subscribed(session_present=False)
    messages = [pair.publish() for _ in range(4)]
    pair.deliver(messages[0], messages[2])
    assert pair.settle() == {("deliver qos0", "lost"): 1}


def test_a_clean_session_misses_what_is_published_while_it_is_away(pair: Pair) -> None:
    pair.deliver(pair.publish())
    pair.subscriber.disconnected()
    pair.publish()
    pair.subscriber.subscribed(session_present=False)
    pair.deliver(pair.publish())
    assert pair.settle() == {}


def test_who_is_not_subscribed_at_the_end_expects_nothing(pair: Pair) -> None:
    pair.subscriber.disconnected()
    pair.receiver.subscriber("never", "t/+", 1, persistent=True)
    pair.publish()
    assert pair.settle() == {}


@pytest.mark.parametrize("before", [1, 3, 100])
def test_a_stream_that_began_before_suback_and_never_comes_is_lost(before: int) -> None:
    pair = Pair()
    for _ in range(before):
        pair.publish()
    pair.subscriber.subscribed(session_present=False)
    for _ in range(200):
        pair.publish()
    lost = pair.settle()[("deliver qos1", "lost")]
    assert 150 < lost <= 200, "nearly all: only some numbers are marked with their time"


def test_who_left_early_is_not_told_of(pair: Pair) -> None:
    pair.publish(acknowledged=False)
    assert pair.sender.unacknowledged == 1
    pair.published.left = True
    pair.sender.report_unacknowledged()
    assert pair.sender.unacknowledged == 0 and pair.settle() == {}


def test_a_persistent_session_misses_nothing() -> None:
    pair = Pair(persistent=True)
    pair.subscriber.subscribed(session_present=False)
    pair.deliver(pair.publish())
    pair.subscriber.disconnected()
    pair.publish()
    pair.subscriber.subscribed(session_present=True)
    pair.deliver(pair.publish())
    assert pair.settle() == {("deliver qos1", "lost"): 1}


def test_a_persistent_session_misses_qos_0_while_it_is_away() -> None:
    pair = Pair(qos=0, persistent=True)
    pair.subscriber.subscribed(session_present=False)
    pair.deliver(pair.publish())
    pair.publish()
    pair.subscriber.subscribed(session_present=True)
    pair.deliver(pair.publish())
    assert pair.settle() == {}


def test_a_persistent_session_that_the_broker_forgot_is_told() -> None:
    pair = Pair(persistent=True)
    pair.subscriber.subscribed(session_present=False)
    pair.subscriber.disconnected()
    pair.subscriber.subscribed(session_present=False)
    assert pair.settle() == {("connect", "session lost"): 1}


def test_nothing_is_expected_before_suback_nor_of_other_topics() -> None:
    pair = Pair()
    pair.publish()
    pair.subscriber.subscribed(session_present=False)
    other = pair.sender.publisher("elsewhere", 1)
    other.next(payload_header.now())
    other.unacknowledged.clear()
    assert pair.settle() == {}


def test_streams_of_processes_have_numbers_of_their_own() -> None:
    def first(process: int) -> Published:
        return DeliveryCheck(process, 0.0, lambda *_: None).publisher("t", 1)

    assert len({first(process).stream for process in range(100)}) == 100


def test_a_client_that_left_for_good_is_not_waited_for(pair: Pair) -> None:
    pair.publish()
    subscriber: Subscriber = pair.subscriber
    pair.receiver.remove(subscriber)
    assert pair.settle() == {}


@pytest.mark.parametrize("size", [16, 17, 100_000])
def test_a_payload_header_is_read_back(size: int) -> None:
    payload = payload_header.payload((1 << 32) - 1, 7, size, (1 << 40) + 3)
    assert len(payload) == size
    assert payload_header.read(payload) == payload_header.PayloadHeader((1 << 32) - 1, 7, (1 << 40) + 3, False, True)
    assert payload_header.read(payload_header.mark_resent(payload)) == payload_header.PayloadHeader(
        (1 << 32) - 1, 7, (1 << 40) + 3, True, True
    )
    assert (
        payload_header.read(b"offline, as all text begins") is None
        and payload_header.mark_resent(b"offline") == b"offline"
    )
