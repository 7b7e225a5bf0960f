"""paho-mqtt against a node, at all protocol levels."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.paho_client import Paho, limits_of_a_client, request_and_response
from tests.harness.broker_process import until
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE

# A client of another maker sees no difference between a store in memory and one on disk.
pytestmark = pytest.mark.parametrize("store", ["sqlite", "cluster"])

LEVELS = pytest.mark.parametrize("level", [3, 4, 5])


@pytest.fixture
def client(broker: Broker) -> Any:
    """Makes clients, which have connected when they are returned."""
    made: list[Paho] = []

    def make(level: int, client_id: str, present: bool = False, **options: Any) -> Paho:
        one = Paho(broker.port, level, client_id, **options)
        made.append(one)
        assert one.answer() == (present, 0)
        return one

    yield make
    for one in made:
        one.leave()


@LEVELS
def test_publish_and_subscribe_at_each_qos(client: Callable[..., Paho], level: int) -> None:
    one = client(level, "one")
    for granted in (0, 1, 2):
        one.client.subscribe([("t/+", granted), ("other", 0)])
        assert one.answer() == [granted, 0]
        for qos in (0, 1, 2):
            one.publish("t/a", b"%d" % qos, qos)
            assert one.message() == ("t/a", b"%d" % qos, min(qos, granted), False)
    one.client.unsubscribe("t/+")
    assert one.answer() == "unsubscribed"
    one.publish("t/a", b"unseen", 1)
    one.publish("other", b"seen", 1)
    assert one.message()[1] == b"seen"


@LEVELS
@pytest.mark.parametrize("qos", [1, 2])
def test_many_in_order(client: Callable[..., Paho], level: int, qos: int) -> None:
    one, two = client(level, "one"), client(level, "two")
    two.client.subscribe("many", qos)
    assert two.answer() == [qos]
    sent = [one.client.publish("many", b"%d" % n, qos) for n in range(2000)]
    assert [int(two.message()[1]) for _ in range(2000)] == list(range(2000))
    for each in sent:
        each.wait_for_publish(DEADLINE)


@LEVELS
def test_will_and_retained(client: Callable[..., Paho], level: int) -> None:
    watcher = client(level, "watcher")
    watcher.client.subscribe("will/#", 2)
    assert watcher.answer() == [2]
    client(level, "dies", will=("will/dies", b"gone", 2, True)).die()
    assert watcher.message() == ("will/dies", b"gone", 2, False)
    late = client(level, "late")
    late.client.subscribe("will/#", 1)
    assert late.answer() == [1]
    assert late.message() == ("will/dies", b"gone", 1, True)


@LEVELS
def test_a_persistent_session(client: Callable[..., Paho], level: int) -> None:
    first = client(level, "keeps", clean_session=False)
    first.client.subscribe("later", 2)
    assert first.answer() == [2]
    first.leave()
    other = client(level, "other")
    for n in range(50):
        other.publish("later", b"%d" % n, 2)
    second = client(level, "keeps", present=level > 3, clean_session=False)
    assert [int(second.message()[1]) for _ in range(50)] == list(range(50))


@LEVELS
def test_a_restart_of_the_node(broker: Broker, client: Callable[..., Paho], level: int, store: str) -> None:
    """The client connects again by itself; all that the node had acknowledged is there."""
    if store == "memory":
        pytest.skip("keeps nothing")
    one = client(level, "one", clean_session=False)
    one.client.reconnect_delay_set(0.05, 0.1)
    one.client.subscribe("t", 2)
    assert one.answer() == [2]
    broker.kill()
    broker.start()
    assert one.answer() == (level > 3, 0)
    one.publish("t", b"still", 2)
    assert one.message() == ("t", b"still", 2, False)


def test_a_refused_client_id(broker: Broker) -> None:
    one = Paho(broker.port, 3, "x" * 24)
    try:
        assert one.answer()[1] != 0
        until(lambda: not one.client.is_connected())
    finally:
        one.leave()


def test_a_request_and_its_response(client: Callable[..., Paho]) -> None:
    request_and_response(client)


@pytest.mark.parametrize("qos", [1, 2])
def test_limits_of_a_client(client: Callable[..., Paho], qos: int) -> None:
    limits_of_a_client(client, qos)
