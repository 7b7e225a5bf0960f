"""Which messages have a context, and which of their steps are recorded: within the limit, whole traces first."""

from dataclasses import replace
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Publish, Subscribe
from flockmq._speedups.codec.properties import encode_block
from flockmq._speedups.session.span_recorder import SpanRecorder, context_in
from tests.harness.inprocess import Client, Node

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def block(*pairs: tuple[str, str]) -> bytes:
    return encode_block({"user_property": list(pairs)})


# Cases of the recommendation's own test suite (w3c/trace-context, test/test.py), and of faults of other programs:
# MindfulSoftwareLLC/dartastic_opentelemetry#192 and #193, PostHog/posthog-js#4776, dotnet/runtime#117530.
@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (PARENT, True),
        (PARENT[:-2] + "03", True),  # unknown flags
        (PARENT[:-2] + "ff", True),
        (f"cc-{TRACE}-{SPAN}-01", True),  # a later version
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
        (f"01-{TRACE}-{SPAN}-09-", True),
        (f"cc-{TRACE}-{SPAN}-01.what-the-future-will-be-like", False),
        (f"cc-{TRACE}-{SPAN}-0", False),
        (PARENT + "-what-the-future-will-not-be-like", False),
        (PARENT + ".", False),
        (PARENT + "\n", False),
        (PARENT + " ", False),
        (" " + PARENT, False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f".0-{TRACE}-{SPAN}-01", False),
        (f"0-{TRACE}-{SPAN}-01", False),
        (f"000-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN.upper()}-01", False),
        (f"00-+{TRACE[1:]}-{SPAN}-01", False),  # int() of many languages takes a sign
        (f"00-{TRACE[:-1]}-{SPAN}-01", False),
        (f"00-{TRACE}0-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN[:-1]}-01", False),
        (f"00-{TRACE}-{SPAN}0-01", False),
        (f"00-{TRACE}-{SPAN}-.1", False),
        (f"00-{TRACE}-{SPAN}-1", False),
        (f"00-{TRACE}-{SPAN}-001", False),
        (f"00_{TRACE}_{SPAN}_01", False),
        (f"00-{TRACE}-{SPAN}", False),
        ("", False),
        ("\u0660\u0660" + PARENT[2:], False),  # digits of another script
    ],
)
def test_traceparent(text: str, valid: bool) -> None:
    context = context_in(block(("traceparent", text)))
    assert (context is not None) == valid
    if context:
        assert context[0].decode() == text[:55]


def test_the_publisher_has_left_it_out() -> None:
    assert context_in(block(("traceparent", PARENT[:-2] + "00"))) == ()
    assert context_in(block(("traceparent", PARENT[:-2] + "fe"))) == ()


def test_two_traceparents_are_none() -> None:
    assert context_in(block(("traceparent", PARENT), ("traceparent", PARENT))) is None


@pytest.mark.parametrize("name", ["Traceparent", "TRACEPARENT", "trace-parent", "traceparent1", "x"])
def test_other_names(name: str) -> None:
    assert context_in(block((name, PARENT))) is None


def test_tracestate_has_all_parts_in_their_order() -> None:
    context = context_in(block(("tracestate", "a=1"), ("traceparent", PARENT), ("tracestate", "b=2,c=3")))
    assert context == (PARENT.encode(), b"a=1,b=2,c=3", False)


# ---- steps of a node ----


class Traced:
    """A node that records steps, and the words of those."""

    def __init__(self, steps_per_second: int = 1000, sample: float = 0.0) -> None:
        traces = {"endpoint": "http://x", "steps_per_second": steps_per_second, "sample": sample}
        self.node = Node(traces=traces)
        recorder = self.node.broker.traces.recorder
        assert recorder is not None
        self.recorder: SpanRecorder = recorder
        self.reader = self.client("reader")
        self.reader.send(Subscribe(packet_id=1, topic_filters=[("t/#", 1)]))
        self.reader.take()
        self.device = self.client("device")

    def client(self, name: str, **more: Any) -> Client:
        client = Client(self.node, name, level=5, **more)
        client.connack()
        return client

    def publish(self, *pairs: tuple[str, str], topic: str = "t/1", qos: int = 0, **more: Any) -> None:
        properties = {"user_property": list(pairs)} if pairs else {}
        self.device.send(Publish(topic, b"x", qos=qos, packet_id=9 if qos else 0, properties={**properties, **more}))

    def steps(self) -> list[tuple[str, bytes | None, str]]:
        return [(step[1], step[5], step[8]) for step in self.recorder.take()]


def test_steps_of_a_marked_message() -> None:
    traced = Traced()
    traced.publish(("traceparent", PARENT))
    assert traced.steps() == [("received", b"device", ""), ("sent", b"reader", "")]
    traced.publish(("traceparent", PARENT), qos=1)
    (message,) = traced.reader.take()[1:]
    traced.reader.send(Puback(packet_id=message.packet_id))  # type: ignore[attr-defined]
    assert traced.steps() == [
        ("received", b"device", ""),
        ("queued", b"reader", ""),
        ("answered", b"device", "PUBACK"),
        ("sent", b"reader", ""),
        ("acknowledged", b"reader", "PUBACK"),
    ]
    assert traced.recorder.begun == 2
    assert message.properties["user_property"] == [("traceparent", PARENT)]  # type: ignore[attr-defined]


def test_other_messages_have_no_steps() -> None:
    traced = Traced()
    traced.publish()
    traced.publish(("a", "b" * 100))
    traced.publish(("traceparent", PARENT[:-2] + "00"))
    traced.publish(("traceparent", PARENT.upper()), qos=1)
    traced.publish(correlation_data=b"\x00\x0btraceparent\x00\x37" + PARENT.encode() + b"x" * 40)  # looks like it
    assert traced.steps() == []
    assert traced.recorder.begun == traced.recorder.missed == 0


def test_the_second_half_is_for_traces_that_have_begun() -> None:
    traced = Traced(steps_per_second=10)
    for number in range(5):
        traced.publish(("traceparent", f"00-{number + 1:032x}-{SPAN}-01"))
    # The third begins with four steps; the fourth would be the seventh step.
    assert [step[0] for step in traced.steps()] == ["received", "sent"] * 3
    assert traced.recorder.missed == 2
    traced.publish(("traceparent", PARENT))
    assert len(traced.steps()) == 2


def test_a_message_that_is_left_out_has_no_later_steps() -> None:
    traced = Traced(steps_per_second=10)
    for _ in range(2):
        traced.publish(("traceparent", PARENT))
    traced.publish(("traceparent", PARENT), qos=1)
    assert [step[0] for step in traced.steps()] == ["received", "sent"] * 2 + ["received", "queued", "answered", "sent"]
    traced.publish(("traceparent", PARENT))
    traced.publish(("traceparent", PARENT))
    traced.publish(("traceparent", PARENT))
    other = traced.client("other")
    traced.publish(("traceparent", PARENT), qos=1)
    assert len(traced.steps()) == 6
    (message,) = traced.reader.take()[-1:]
    traced.reader.send(Puback(packet_id=message.packet_id))  # type: ignore[attr-defined]
    assert traced.steps() == [], "its acknowledgement comes in a second that has room"
    assert other.take() == []


@pytest.mark.parametrize(
    ("sample", "least", "most"), [(1.0, 1000, 1000), (0.0, 0, 0), (0.2, 130, 280), (1e-18, 0, 0), (5e-324, 0, 0)]
)
def test_a_share_of_the_others_gets_a_context(sample: float, least: int, most: int) -> None:
    traced = Traced(steps_per_second=100_000, sample=sample)
    for _ in range(1000):
        traced.publish()
    steps = traced.recorder.take()
    assert least <= traced.recorder.begun <= most
    begun = [step[2] for step in steps if step[1] == "received"]
    assert len(set(begun)) == len(begun) == traced.recorder.begun
    assert [step[2] for step in steps if step[1] == "sent"] == begun
    assert all(context[2] and context_in(block(("traceparent", context[0].decode()))) for context in begun)


def test_sampling_leaves_out_what_its_publisher_has_left_out() -> None:
    traced = Traced(sample=1.0)
    traced.publish(("traceparent", PARENT[:-2] + "00"))
    assert traced.steps() == []
    traced.publish(("traceparent", PARENT))
    assert {step[2][0] for step in traced.recorder.take()} == {PARENT.encode()}
    traced.publish(("traceparent", "invalid"))  # as if there were none: the recommendation restarts the trace
    assert len(traced.steps()) == 2


def test_a_message_keeps_its_context_in_the_queue_of_an_absent_client() -> None:
    traced = Traced(sample=1.0)
    keeper = traced.client("keeper", clean_start=False, properties={"session_expiry_interval": 1000})
    keeper.send(Subscribe(packet_id=1, topic_filters=[("k/#", 1)]))
    keeper.close()
    traced.node.run()
    traced.publish(topic="k/1", qos=1)
    steps = traced.recorder.take()
    assert [step[1] for step in steps] == ["received", "queued", "stored", "answered"]
    for _ in range(20):
        traced.publish(topic="t/other")
    traced.recorder.take()
    traced.client("keeper", clean_start=False, properties={"session_expiry_interval": 1000})
    (sent,) = traced.recorder.take()
    assert (sent[1], sent[2]) == ("sent", steps[0][2])


def test_a_reload_changes_the_share_and_the_limit() -> None:
    traced = Traced()
    broker = traced.node.broker
    broker.configure(replace(broker.config, traces=replace(broker.config.traces, sample=1.0, steps_per_second=10)))
    for _ in range(10):
        traced.publish()
    assert [step[0] for step in traced.steps()] == ["received", "sent"] * 3


def test_a_trace_of_operators_and_spans_do_not_disturb_each_other() -> None:
    traced = Traced()
    arguments = {"follower": "f", "client": None, "topic": "t/#", "names": [], "stop": False}
    follow = traced.node.broker.rpc_methods["trace"]
    assert follow(arguments) == [[], 0]
    traced.publish(("traceparent", PARENT))
    traced.publish()
    assert [step[1] for step in follow(arguments)[0]] == ["received", "sent"] * 2
    assert len(traced.steps()) == 2
    follow(arguments | {"stop": True})
    traced.publish(("traceparent", PARENT))
    assert len(traced.steps()) == 2


def test_what_a_client_sends_does_not_make_steps_large() -> None:
    """The limit is a number of steps, so each has a largest size; and none takes the time of a large payload."""
    traced = Traced()
    long = traced.client("c" * 50_000)
    wide = [("tracestate", "a=" + "b" * 60_000), ("traceparent", PARENT)]
    long.send(Publish("t/" + "x" * 50_000, b"y" * 500_000, properties={"user_property": wide}))
    while not traced.node.counted("publish_received"):  # the socket takes it in parts
        long.read()
    received, sent = traced.recorder.take()
    assert (len(received[4]), len(received[5] or b""), received[6]) == (1024, 1024, 500_000)
    assert received[2] == sent[2] == (PARENT.encode(), b"", False)
    assert received[3] == sent[3]


def test_names_of_messages_tell_long_payloads_of_different_length_apart() -> None:
    traced = Traced()
    for size in (2000, 3000):
        traced.device.send(Publish("t/1", b"x" * size, properties={"user_property": [("traceparent", PARENT)]}))
    names = [step[3] for step in traced.recorder.take() if step[1] == "received"]
    assert names[0] != names[1]
