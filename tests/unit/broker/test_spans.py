"""Spans that steps make, also if some steps are missing or come twice."""

from typing import Any

import pytest

from flockmq.broker.admin.exporters.spans import MAX_KNOWN, OPEN_SECONDS, Span, Spans

PARENT = "00f067aa0ba902b7"
CONTEXT = (f"00-{'4b' * 16}-{PARENT}-01".encode(), b"a=1", False)
HERE = (CONTEXT[0], b"", True)  # it began at this node
SECOND = 10**9


class Steps:
    """Makes spans of steps, a nanosecond apart."""

    def __init__(self) -> None:
        self.spans = Spans()
        self.now = 0

    def add(self, *steps: tuple[str, str, str], key: Any = (1, 7), qos: int = 1, context: Any = CONTEXT) -> list[Span]:
        """Steps as (word, client id, detail). Those of the publisher have the key."""
        made = []
        for word, client, detail in steps:
            self.now += 1
            own = key if word in ("received", "stored", "answered", "refused") else None
            made.append((self.now, word, context, 99, b"t/1", client.encode() or None, 5, qos, detail, own))
        return self.spans.add(made, self.now)


def names(spans: list[Span]) -> list[tuple[str, int, int]]:
    return [(span.name, span.start, span.end) for span in spans]


def test_qos_1() -> None:
    found = Steps().add(
        ("received", "device", ""),
        ("queued", "reader", ""),
        ("stored", "device", ""),
        ("answered", "device", "PUBACK"),
        ("sent", "reader", ""),
        ("acknowledged", "reader", "PUBACK"),
    )
    assert names(found) == [("store", 2, 3), ("receive", 1, 4), ("deliver", 1, 5), ("acknowledge", 5, 6)]
    store, receive, deliver, acknowledge = found
    assert (receive.parent_id, deliver.parent_id) == (PARENT, PARENT)
    assert (store.parent_id, acknowledge.parent_id) == (receive.span_id, deliver.span_id)
    assert {span.trace_id for span in found} == {"4b" * 16}
    assert (receive.is_parent_remote, store.is_parent_remote) == (True, False)


def test_it_began_here() -> None:
    receive, deliver = Steps().add(("received", "d", ""), ("answered", "d", "PUBACK"), ("sent", "r", ""), context=HERE)
    assert (receive.span_id, receive.parent_id) == (PARENT, "")
    assert (deliver.parent_id, deliver.is_parent_remote) == (PARENT, False)


def test_qos_0_ends_when_it_has_been_routed() -> None:
    steps = Steps()
    found = steps.add(("received", "d", ""), ("forwarded", "node-b", ""), ("sent", "r", ""), ("sent", "s", ""), qos=0)
    assert sorted(names(found)) == [("deliver", 1, 3), ("deliver", 1, 4), ("receive", 1, 4)]
    (receive,) = [span for span in found if span.name == "receive"]
    assert receive.events == ((2, "forwarded", {"flockmq.node": "node-b"}),)
    found = steps.add(("received", "d", ""), ("received", "d", ""), qos=0)
    assert names(found) == [("receive", 5, 5), ("receive", 6, 6)]


def test_qos_2_is_open_until_pubcomp() -> None:
    steps = Steps()
    assert steps.add(("received", "d", ""), ("stored", "d", ""), ("answered", "d", "PUBREC"), qos=2)[0].name == "store"
    receive, deliver = steps.add(("sent", "r", ""), ("answered", "d", "PUBCOMP"), qos=2)[::-1]
    assert (receive.start, receive.end, receive.events) == (1, 5, ((3, "PUBREC", {}),))
    assert deliver.name == "deliver"


@pytest.mark.parametrize(("qos", "answer"), [(0, ""), (1, "PUBACK"), (2, "PUBREC")])
def test_refused(qos: int, answer: str) -> None:
    more = [("answered", "d", answer)] if answer else []
    (receive,) = Steps().add(("received", "d", ""), ("refused", "", "no right"), *more, qos=qos)
    assert (receive.name, receive.error, receive.events) == ("receive", "no right", ())


def test_dropped_for_a_receiver() -> None:
    (deliver,) = Steps().add(("dropped", "r", "the queue is full"))
    assert (deliver.name, deliver.error) == ("deliver", "the queue is full")


def test_nobody_has_subscribed() -> None:
    (receive,) = Steps().add(("received", "d", ""), ("dropped", "", "nobody here has subscribed"), qos=0)
    assert receive.events == ((2, "dropped", {"flockmq.detail": "nobody here has subscribed"}),)
    assert not receive.error


def test_sent_again_and_retained_did_not_wait() -> None:
    steps = Steps()
    steps.add(("received", "d", ""), ("answered", "d", "PUBACK"), ("sent", "r", ""))
    (again, acknowledge) = steps.add(("sent", "r", "again, with DUP"), ("acknowledged", "r", "PUBACK"))
    assert again.start == again.end == acknowledge.start
    assert acknowledge.parent_id == again.span_id
    (retained,) = steps.add(("sent", "late", "retained"))
    assert retained.start == retained.end


def test_a_message_from_elsewhere_has_no_wait() -> None:
    deliver, acknowledge = Steps().add(("sent", "r", ""), ("acknowledged", "r", "PUBREC with a failure"))
    assert deliver.start == deliver.end
    assert (acknowledge.error, acknowledge.attributes["messaging.mqtt.acknowledgement"]) == (
        "the client refuses it",
        "PUBREC",
    )


def test_an_acknowledgement_of_a_message_sent_before_the_node_was_started() -> None:
    (acknowledge,) = Steps().add(("acknowledged", "r", "PUBACK"))
    assert (acknowledge.parent_id, acknowledge.start) == (PARENT, acknowledge.end)


def test_two_publishes_of_equal_bytes_in_one_span() -> None:
    """A publisher may send the same message twice within one span: each has its own spans."""
    steps = Steps()
    steps.add(("received", "d", ""), key=(1, 1))
    found = steps.add(("received", "d", ""), ("answered", "d", "PUBACK"), key=(1, 2))
    found += steps.add(("answered", "d", "PUBACK"), key=(1, 1))
    assert sorted(names(found)) == [("receive", 1, 4), ("receive", 2, 3)]
    assert found[0].span_id != found[1].span_id


def test_a_publisher_that_goes_away_before_the_acknowledgement() -> None:
    steps = Steps()
    assert steps.add(("received", "d", "")) == []
    assert steps.spans.add([], OPEN_SECONDS * SECOND) == []
    (receive,) = steps.spans.add([], (OPEN_SECONDS + 1) * SECOND)
    assert receive.error == "not acknowledged"
    assert steps.add(("answered", "d", "PUBACK")) == []
    steps.add(("received", "d", ""))
    (receive,) = steps.add(("received", "other", ""))  # by another connection with the same number
    assert receive.attributes["messaging.client.id"] == "d"


def test_what_is_remembered_is_bounded() -> None:
    """Receivers that never acknowledge, and publishers that never get an answer: apache/activemq#1769 kept them."""
    spans = Spans()
    made = 0
    for number in range(MAX_KNOWN + 500):
        context = (f"00-{number + 1:032x}-{PARENT}-01".encode(), b"", False)
        steps = [
            (number, "received", context, number, b"t", b"d", 1, 1, "", (1, number)),
            (number, "sent", context, number, b"t", b"r", 1, 1, "", None),
        ]
        made += len(spans.add(steps, number))
    assert made == MAX_KNOWN + 500 + 500
    known = (spans._arrived, spans._open, spans._routed, spans._sent)
    assert [len(each) for each in known] == [MAX_KNOWN] * 4


def test_names_that_are_not_text() -> None:
    step = (1, "sent", CONTEXT, 1, b"t/\xff", b"\xfe", 1, 0, "", None)
    (deliver,) = Spans().add([step], 1)
    assert deliver.attributes["messaging.destination.name"] == "t/\ufffd"
