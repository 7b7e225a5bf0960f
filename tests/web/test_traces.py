"""Spans of messages, by real nodes, at a server that reads OTLP with the protocol's own definitions.

Issues of other brokers behind the tests: emqx/emqx#12752 (traceparent that subscribers get), #16324 (messages by HTTP),
#16703 (publishers of MQTT 3.1.1); gofr-dev/gofr#3595 (spans of a message in two traces); apache/activemq#1769 (spans of
deliveries that nobody ends); dotnet/runtime#117530 and others, in `tests/unit/speedups/test_span_recorder.py`.
"""

import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.paho_client import Paho, properties
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.otlp_server import OtlpServer, TakenSpan
from tests.web.http_client import HttpClient

FAST = {"flockmq.broker.node.SPAN_SECONDS": 0.02, "http.listen": "127.0.0.1:0"}
PUBLISHER = "00f067aa0ba902b7"  # id of the publisher's span
MakeClient = Callable[..., Paho]
numbers = itertools.count(1)


def new_trace() -> str:
    return f"{next(numbers):08x}" * 4


def marks(trace: str, *more: tuple[str, str], flags: str = "01") -> Any:
    """The properties of a message of this trace."""
    return properties("PUBLISH", UserProperty=[("traceparent", f"00-{trace}-{PUBLISHER}-{flags}"), *more])


@pytest.fixture(scope="module")
def shared_collector() -> Iterator[OtlpServer]:
    server = OtlpServer()
    yield server
    server.close()


@pytest.fixture
def collector() -> Iterator[OtlpServer]:
    server = OtlpServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, shared_collector: OtlpServer) -> Iterator[BrokerProcess]:
    """A node that the tests of this file share."""
    settings = {**FAST, "traces.endpoint": shared_collector.url}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=iot")
        broker = BrokerProcess(tmp_path_factory.mktemp("traces"), "sqlite", settings).start()
    yield broker
    assert broker.stop() == 0
    broker.check()


@pytest.fixture
def client() -> Iterator[MakeClient]:
    made: list[Paho] = []

    def make(port: int, client_id: str, level: int = 5, present: bool = False, **more: Any) -> Paho:
        one = Paho(port, level, client_id, **more)
        made.append(one)
        assert one.answer() == (present, 0)
        return one

    yield make
    for one in made:
        one.leave()


def subscribe(client: Paho, topic_filter: str, qos: int) -> None:
    client.client.subscribe(topic_filter, qos)
    assert client.answer() == [qos]


def spans_of(server: OtlpServer, trace: str, *names: str) -> list[TakenSpan]:
    """The spans of a trace, when it has these and no others."""
    wanted = sorted(names)

    def found() -> list[TakenSpan]:
        return server.spans(lambda span: span.trace == trace)

    until(lambda: sorted(span.name for span in found()) == wanted, f"spans {names} of trace {trace}")
    return found()


def one(spans: list[TakenSpan], name: str) -> TakenSpan:
    (found,) = [span for span in spans if span.name == name]
    return found


def figures(node: BrokerProcess) -> dict[str, float]:
    """The metrics of a node."""
    text = HttpClient(node).ask("GET", "//metrics").data.decode()
    rows = [line.split() for line in text.splitlines() if line.startswith("flockmq_") and " " in line]
    return {name.partition("{")[0]: float(value) for name, value in rows}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_path_of_a_message(node: BrokerProcess, shared_collector: OtlpServer, client: MakeClient, qos: int) -> None:
    reader, device, trace = client(node.port, "reader"), client(node.port, "device"), new_trace()
    subscribe(reader, "path/#", qos)
    device.publish(f"path/{qos}", b"21.5", qos, properties=marks(trace, ("tracestate", "a=1"), ("x", "y")))
    given = reader.messages.get(timeout=5).properties.UserProperty
    assert given == [("traceparent", f"00-{trace}-{PUBLISHER}-01"), ("tracestate", "a=1"), ("x", "y")]
    spans = spans_of(shared_collector, trace, "receive", "deliver", *(["acknowledge"] if qos else []))
    receive, deliver = one(spans, "receive"), one(spans, "deliver")
    assert (receive.client, deliver.client) == ("device", "reader")
    assert receive.parent == deliver.parent == PUBLISHER
    assert receive.start <= deliver.end and receive.start <= receive.end
    assert {span.state for span in spans} == {"a=1"}
    assert receive.attributes == {
        "system": "mqtt",
        "operation.name": "receive",
        "operation.type": "receive",
        "destination.name": f"path/{qos}",
        "message.body.size": 4,
        "mqtt.qos": qos,
        "client.id": "device",
        **({"mqtt.acknowledgement": "PUBACK" if qos == 1 else "PUBCOMP"} if qos else {}),
    }
    if qos:
        acknowledge = one(spans, "acknowledge")
        assert (acknowledge.parent, acknowledge.client, acknowledge.start) == (deliver.id, "reader", deliver.end)
        assert acknowledge.attributes["mqtt.acknowledgement"] == ("PUBACK" if qos == 1 else "PUBREC")
    assert receive.events == (["PUBREC"] if qos == 2 else [])
    assert len({span.id for span in spans}) == len(spans)
    assert not any(span.error for span in spans)
    assert {headers["x-team"] for headers in shared_collector.headers} == {"iot"}


@pytest.mark.parametrize("qos", [1, 2])
def test_an_absent_client_gets_it_later(
    node: BrokerProcess, shared_collector: OtlpServer, client: MakeClient, qos: int
) -> None:
    """Also if the broker is killed in between: then the wait before that is not known."""
    device, trace, later = client(node.port, "device"), new_trace(), new_trace()
    keeper = client(node.port, f"keeper{qos}", clean_session=False)
    subscribe(keeper, f"kept/{qos}/#", qos)
    keeper.leave()
    device.publish(f"kept/{qos}/1", b"x", qos, properties=marks(trace))
    spans = spans_of(shared_collector, trace, "receive", "store")
    receive, store = one(spans, "receive"), one(spans, "store")
    assert store.parent == receive.id and receive.start <= store.start < store.end <= receive.end
    keeper = client(node.port, f"keeper{qos}", present=True, clean_session=False)
    assert keeper.message()[1] == b"x"
    deliver = one(spans_of(shared_collector, trace, "receive", "store", "deliver", "acknowledge"), "deliver")
    assert deliver.start == receive.start and deliver.end > receive.end, "it waited in the queue"
    keeper.leave()
    device.publish(f"kept/{qos}/2", b"y", qos, properties=marks(later))
    spans_of(shared_collector, later, "receive", "store")
    node.kill()
    node.start()
    keeper = client(node.port, f"keeper{qos}", present=True, clean_session=False)
    assert keeper.message()[1] == b"y"
    spans = spans_of(shared_collector, later, "receive", "store", "deliver", "acknowledge")
    assert one(spans, "deliver").parent == PUBLISHER


def test_one_subscriber_of_a_group_has_a_delivery(
    node: BrokerProcess, shared_collector: OtlpServer, client: MakeClient
) -> None:
    workers, device = [client(node.port, f"worker{n}") for n in range(3)], client(node.port, "device")
    for worker in workers:
        subscribe(worker, "$share/workers/jobs/#", 1)
    for qos in (0, 1):
        trace = new_trace()
        device.publish("jobs/1", b"x", qos, properties=marks(trace))
        spans = spans_of(shared_collector, trace, "receive", "deliver", *(["acknowledge"] if qos else []))
        (got,) = [f"worker{n}" for n, worker in enumerate(workers) if _has_message(worker, n, spans)]
        assert one(spans, "deliver").client == got


def _has_message(worker: Paho, number: int, spans: list[TakenSpan]) -> bool:
    if one(spans, "deliver").client == f"worker{number}":
        worker.message()
        return True
    return not worker.messages.empty()


def test_messages_without_spans(node: BrokerProcess, shared_collector: OtlpServer, client: MakeClient) -> None:
    """Nothing that a client writes into the property is its error."""
    reader, device, last = client(node.port, "reader"), client(node.port, "device"), new_trace()
    subscribe(reader, "odd/#", 1)
    odd = ["", "00", "x" * 60_000, f"00-{'0' * 32}-{PUBLISHER}-01", f"ff-{new_trace()}-{PUBLISHER}-01"]
    for text in odd:
        device.publish("odd/1", b"x", 1, properties=properties("PUBLISH", UserProperty=[("traceparent", text)]))
        assert reader.messages.get(timeout=5).properties.UserProperty == [("traceparent", text)]
    twice = ("traceparent", f"00-{new_trace()}-{PUBLISHER}-01")
    device.publish("odd/1", b"x", 1, properties=marks(new_trace(), twice))
    device.publish("odd/1", b"x", 1, properties=marks(new_trace(), flags="00"))
    device.publish("odd/1", b"x", 1)
    device.publish("odd/last", b"x", 1, properties=marks(last, ("tracestate", "not a tracestate,=,a=1")))
    spans_of(shared_collector, last, "receive", "deliver", "acknowledge")
    topics = [span.attributes["destination.name"] for span in shared_collector.spans()]
    assert "odd/1" not in topics


def test_retained_messages_and_wills(node: BrokerProcess, shared_collector: OtlpServer, client: MakeClient) -> None:
    device, trace, last = client(node.port, "device"), new_trace(), new_trace()
    device.publish("kitchen/state", b"on", 1, retain=True, properties=marks(trace))
    spans = spans_of(shared_collector, trace, "receive", "store")
    assert one(spans, "receive").events == ["retained"]
    late = client(node.port, "late")
    subscribe(late, "kitchen/#", 0)
    assert late.message()[3] is True
    deliver = one(spans_of(shared_collector, trace, "receive", "store", "deliver"), "deliver")
    assert deliver.start == deliver.end and deliver.attributes["detail"] == "retained"
    will = properties("WILLMESSAGE", UserProperty=[("traceparent", f"00-{last}-{PUBLISHER}-01")])
    client(node.port, "mortal", will=("kitchen/will", b"gone", 1, False, will)).die()
    assert late.message()[:2] == ("kitchen/will", b"gone")
    assert one(spans_of(shared_collector, last, "deliver"), "deliver").parent == PUBLISHER
    device.publish("kitchen/state", b"", 1, retain=True)


def test_a_refused_message_is_an_error(node: BrokerProcess, shared_collector: OtlpServer, client: MakeClient) -> None:
    device = client(node.port, "device")
    for qos in (0, 1, 2):
        trace = new_trace()
        device.client.publish("$SYS/broker/x", b"x", qos, properties=marks(trace))
        assert one(spans_of(shared_collector, trace, "receive"), "receive").error == "only the broker publishes there"


def test_by_http(node: BrokerProcess, shared_collector: OtlpServer, client: MakeClient) -> None:
    reader, trace = client(node.port, "reader"), new_trace()
    subscribe(reader, "api/#", 0)
    parent = f"00-{trace}-{PUBLISHER}-01"
    body = {
        "topic": "api/1",
        "payload": "x",
        "properties": {"user_property": [{"name": "traceparent", "value": parent}]},
    }
    assert HttpClient(node).ask("POST", "/messages", body).status == 200
    assert reader.messages.get(timeout=5).properties.UserProperty == [("traceparent", parent)]
    assert one(spans_of(shared_collector, trace, "deliver"), "deliver").client == "reader"


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_sample_of_older_clients(start_broker: StartBroker, collector: OtlpServer, client: MakeClient) -> None:
    """Devices of MQTT 3.1.1 have no user properties: their traces begin here, and nothing is added to the message."""
    node = start_broker({**FAST, "traces.endpoint": collector.url, "traces.sample": 1})
    reader, old, device = client(node.port, "reader"), client(node.port, "old", level=4), client(node.port, "device")
    subscribe(reader, "#", 2)
    for qos in (0, 1, 2):
        old.publish("t", b"same", qos)
        assert not hasattr(reader.messages.get(timeout=5).properties, "UserProperty")
    until(lambda: [span.name for span in collector.spans()].count("acknowledge") == 2)
    receives = [span for span in collector.spans() if span.name == "receive"]
    assert [span.parent for span in receives] == [""] * 3
    assert len({span.trace for span in receives}) == 3
    for receive in receives:
        deliver = one(collector.spans(lambda span, trace=receive.trace: span.trace == trace), "deliver")  # type: ignore[misc]
        assert (deliver.parent, deliver.client) == (receive.id, "reader")
    left_out = new_trace()
    device.publish("t", b"x", 1, properties=marks(left_out, flags="00"))
    device.publish("t", b"x", 1)
    until(lambda: [span.name for span in collector.spans()].count("acknowledge") == 3)
    assert not collector.spans(lambda span: span.trace == left_out)


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_flood_of_marks_is_bounded(start_broker: StartBroker, collector: OtlpServer, client: MakeClient) -> None:
    more = {"traces.endpoint": collector.url, "traces.steps_per_second": 100, "limits.receive_maximum": 1000}
    node = start_broker({**FAST, **more, "flockmq.broker.node.SPAN_SECONDS": 1.0})
    reader, device = client(node.port, "reader"), client(node.port, "device")
    subscribe(reader, "#", 1)
    began = time.monotonic()
    for _ in range(1000):
        device.client.publish("t", b"x", 1, properties=marks(new_trace()))
    for _ in range(1000):
        reader.message()
    until(lambda: figures(node)["flockmq_spans_exported_total"] > 0)
    found = figures(node)
    assert found["flockmq_traced_messages_total"] + found["flockmq_trace_steps_dropped_total"] >= 1000
    assert found["flockmq_traced_messages_total"] <= 50 * (time.monotonic() - began + 2), (
        "half of the steps of a second"
    )
    assert found["flockmq_publish_received_total"] == 1000


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_collector_that_is_away_and_back(start_broker: StartBroker, client: MakeClient) -> None:
    first = OtlpServer()
    first.close()
    node = start_broker(
        {**FAST, "traces.endpoint": first.url, "flockmq.broker.admin.exporters.otel_spans.EXPORT_SECONDS": 2.0}
    )
    reader, device, trace = client(node.port, "reader"), client(node.port, "device"), new_trace()
    subscribe(reader, "#", 1)
    device.publish("t", b"x", 1, properties=marks(trace))
    assert reader.message()[1] == b"x"
    assert "refused" in node.wait_for_log("the collector does not take spans")["reason"]
    device.publish("t", b"y", 1)
    assert reader.message()[1] == b"y"
    back = OtlpServer(first.port)
    spans_of(back, trace, "receive", "deliver", "acknowledge")
    node.wait_for_log("the collector takes spans again")
    back.status = 400
    device.publish("t", b"z", 1, properties=marks(new_trace()))
    until(lambda: back.refused > 0)
    assert len([line for line in node.log if "the collector" in line["event"]]) <= 3
    assert node.stop() == 0, "it stops while the collector refuses"
    back.close()


@pytest.mark.parametrize("store", ["sqlite"])
def test_spans_that_a_collector_refuses_do_not_hold_up_others(
    start_broker: StartBroker, collector: OtlpServer, client: MakeClient
) -> None:
    more = {"traces.endpoint": collector.url, "flockmq.broker.admin.exporters.otel_spans.WAIT_SECONDS": 0}
    node = start_broker({**FAST, **more})
    device, refused, taken = client(node.port, "device"), new_trace(), new_trace()
    collector.status = 400
    device.publish("t", b"x", 1, properties=marks(refused))
    until(lambda: figures(node)["flockmq_spans_dropped_total"] == 1)
    collector.status = 200
    device.publish("t", b"y", 1, properties=marks(taken))
    spans_of(collector, taken, "receive")
    assert not collector.spans(lambda span: span.trace == refused)
    assert figures(node)["flockmq_spans_dropped_total"] == 1


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_collector_that_never_answers(start_broker: StartBroker, client: MakeClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = start_broker({**FAST, "traces.endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        device = client(node.port, "device")
        device.publish("t", b"x", 1, properties=marks(new_trace()))
        connection, _ = silent.accept()
        device.publish("t", b"y", 2, properties=marks(new_trace()))
        assert node.stop() == 0
        connection.close()


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_link_carries_the_context_on(start_broker: StartBroker, collector: OtlpServer, client: MakeClient) -> None:
    settings = {**FAST, "traces.endpoint": collector.url}
    far = start_broker({**settings, "cluster.node_name": "far"})
    table = {"url": f"mqtt://127.0.0.1:{far.port}", "topics": ["up/# out 1"], "retry": 0.5}
    near = start_broker({**settings, "cluster.node_name": "near", "links": json.dumps({"up": table})})
    near.wait_for_log("link is connected")
    reader, device, trace = client(far.port, "reader"), client(near.port, "device"), new_trace()
    subscribe(reader, "up/#", 1)
    device.publish("up/1", b"x", 1, properties=marks(trace))
    assert reader.message()[1] == b"x"
    names = ["receive", "store", "deliver", "acknowledge"]
    until(lambda: one_of(collector, trace, "far", "acknowledge"))
    until(lambda: one_of(collector, trace, "near", "acknowledge"))
    assert {span.name for span in collector.spans() if span.node == "near"} <= set(names)
    assert {span.parent for span in collector.spans() if span.name == "receive"} == {PUBLISHER}


def one_of(server: OtlpServer, trace: str, node: str, name: str) -> list[TakenSpan]:
    return server.spans(lambda span: (span.trace, span.node, span.name) == (trace, node, name))


def test_nodes_of_a_cluster(start_cluster: StartCluster, collector: OtlpServer, client: MakeClient) -> None:
    cluster = start_cluster({**FAST, "traces.endpoint": collector.url}, nodes="ab")
    device = client(cluster["a"].port, "device")
    reader = client(cluster["b"].port, "reader")
    subscribe(reader, "t/#", 1)
    keeper = client(cluster["b"].port, "keeper", clean_session=False)
    subscribe(keeper, "k/#", 1)
    for qos in (0, 1):
        trace = new_trace()
        device.publish("t/1", b"x", qos, properties=marks(trace))
        assert reader.message()[1] == b"x"
        until(lambda trace=trace: one_of(collector, trace, "b", "deliver"))  # type: ignore[misc]
        (receive,) = until(lambda trace=trace: one_of(collector, trace, "a", "receive"))  # type: ignore[misc]
        (deliver,) = one_of(collector, trace, "b", "deliver")
        assert (deliver.client, deliver.parent, receive.parent) == ("reader", PUBLISHER, PUBLISHER)
        assert "forwarded" in receive.events
    trace = new_trace()
    device.publish("k/1", b"x", 1, properties=marks(trace))
    assert keeper.message()[1] == b"x"
    until(lambda: one_of(collector, trace, "b", "acknowledge"))
    until(lambda: one_of(collector, trace, "a", "store"))
    keeper.leave()
    trace = new_trace()
    device.publish("k/2", b"y", 1, properties=marks(trace))
    keeper = client(cluster["a"].port, "keeper", present=True, clean_session=False)
    assert keeper.message()[1] == b"y"
    until(lambda: one_of(collector, trace, "a", "acknowledge"))
    (deliver,) = one_of(collector, trace, "a", "deliver")
    (receive,) = one_of(collector, trace, "a", "receive")
    assert deliver.start == receive.start, "it waited in Redis"
