"""MQTT 5.0 over nodes: properties, options, identifiers, expiry and delayed wills."""

from typing import Any

import pytest

from flockmq._speedups.codec.packets import Disconnect, Puback, Publish, Subscribe, Unsubscribe
from flockmq._speedups.codec.reason_codes import ReasonCode
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_session

LEASE = 1.5  # seconds
LATE = 5  # seconds by which a busy node may have the clock of the cluster too late
PROPERTIES: dict[str, Any] = {
    "payload_format_indicator": 1,
    "content_type": "text/plain",
    "response_topic": "answers/1",
    "correlation_data": b"\0\1",
    "user_property": [("a", "1"), ("a", "2"), ("b", "")],
}
NO_LOCAL, AS_PUBLISHED = 4, 8
FOREVER = {"properties": {"session_expiry_interval": 0xFFFFFFFF}}


@pytest.fixture
def cluster(start_cluster: StartCluster) -> ClusterProcess:
    return start_cluster({"cluster.lease": LEASE, "cluster.timeout": 0.7})


def five(cluster: ClusterProcess, node: str, client_id: str, **connect: Any) -> SocketClient:
    client = SocketClient(cluster[node].port, client_id, level=5, **connect)
    assert client.connack is not None and client.connack.reason_code == 0, client.connack
    return client


def message(client: SocketClient) -> Publish:
    """The next message; one of QoS 1 is acknowledged."""
    packet = client.receive()
    assert isinstance(packet, Publish), packet
    if packet.qos == 1:
        client.send(Puback(packet_id=packet.packet_id))
    return packet


def subscribe(client: SocketClient, name: str, options: int, identifier: int = 0) -> None:
    properties = {"subscription_identifier": identifier} if identifier else {}
    client.send(Subscribe(1, [(name, options)], properties))
    assert getattr(client.receive(), "reason_codes", None) == [options & 3]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_message_crosses_nodes_whole(cluster: ClusterProcess, qos: int, clean: bool) -> None:
    more: dict[str, Any] = {} if clean else FOREVER
    reader = five(cluster, "b", "reader", clean_start=clean, **more)
    old = SocketClient(cluster["c"].port, "old")
    subscribe(reader, "t/#", 1 | AS_PUBLISHED, 7)
    subscribe(reader, "t/+", 1, 268_435_455)
    old.subscribe(("t/#", 1))
    writer = five(cluster, "a", "writer")
    properties = PROPERTIES | {"message_expiry_interval": 100}
    writer.send(Publish("t/1", b"x", qos, retain=True, packet_id=qos, properties=properties))
    found = message(reader)
    left = found.properties.pop("message_expiry_interval")
    assert 90 <= left <= 100 + LATE
    assert found.properties == PROPERTIES | {"subscription_identifier": [7, 268_435_455]}
    assert (found.qos, found.retain, found.payload) == (qos, True, b"x")
    plain = message(old)
    assert (plain.qos, plain.retain, plain.payload, plain.properties) == (qos, False, b"x", {})
    late = five(cluster, "c", "late")
    subscribe(late, "t/1", 0, 3)
    kept = message(late)
    assert 90 <= kept.properties.pop("message_expiry_interval") <= 100 + LATE
    assert kept.retain and kept.properties == PROPERTIES | {"subscription_identifier": [3]}


def test_a_queue_has_what_its_subscriptions_were(cluster: ClusterProcess) -> None:
    """Identifier and RETAIN are as at the time of publishing; the client comes back at another node."""
    reader = five(cluster, "a", "reader", **FOREVER)
    subscribe(reader, "q", 1 | AS_PUBLISHED, 5)
    reader.close()
    writer = five(cluster, "b", "writer")
    writer.send(Publish("q", b"one", 1, retain=True, packet_id=1, properties=PROPERTIES))
    assert getattr(writer.receive(), "reason_code", None) == 0
    reader = five(cluster, "c", "reader", clean_start=False, **FOREVER)
    assert reader.connack is not None and reader.connack.session_present
    found = message(reader)
    assert (found.payload, found.retain) == (b"one", True)
    assert found.properties == PROPERTIES | {"subscription_identifier": [5]}
    subscribe(reader, "q", 1 | 0x20)  # options and identifier of the filter are replaced
    writer.send(Publish("q", b"two", 1, retain=True, packet_id=2))
    found = message(reader)
    assert (found.payload, found.retain, found.properties) == (b"two", False, {})
    reader.send(Unsubscribe(3, ["q", "q"]))
    assert getattr(reader.receive(), "reason_codes", None) == [0, ReasonCode.NO_SUBSCRIPTION_EXISTED]
    writer.send(Publish("q", b"", retain=True))


@pytest.mark.parametrize("clean", [True, False])
def test_no_local_also_for_a_will_that_another_node_publishes(cluster: ClusterProcess, clean: bool) -> None:
    more: dict[str, Any] = {} if clean else FOREVER
    client = five(cluster, "a", "own", clean_start=clean, will_topic="n", will_payload=b"w", will_qos=1, **more)
    subscribe(client, "n", 1 | NO_LOCAL)
    client.send(Publish("n", b"mine", 1, packet_id=1))
    assert getattr(client.receive(), "reason_code", None) == ReasonCode.NO_MATCHING_SUBSCRIBERS
    other = five(cluster, "b", "other")
    other.send(Publish("n", b"other's", 1, packet_id=1))
    assert message(client).payload == b"other's"
    watcher = five(cluster, "c", "watcher")
    subscribe(watcher, "n", 1)
    cluster["a"].kill()
    assert message(watcher).payload == b"w"
    client = five(cluster, "b", "own", clean_start=False, **more)
    # An acknowledgement that the dead node had not passed on makes one message come again, with DUP.
    assert all(isinstance(packet, Publish) and packet.dup and packet.payload == b"other's" for packet in client.ping())
    cluster["a"].start()


def test_a_session_ends_when_its_interval_is_over(cluster: ClusterProcess) -> None:
    redis = cluster.redis.client()
    short = five(cluster, "a", "short", properties={"session_expiry_interval": 1})
    subscribe(short, "s", 1)
    long = five(cluster, "b", "long", properties={"session_expiry_interval": 1})
    long.send(Disconnect(0, {"session_expiry_interval": 1000}))
    assert long.receive() is None
    short.close()
    until(lambda: not redis.exists("mq:s:short"), "the session has ended")
    assert redis.exists("mq:s:long")
    back = five(cluster, "c", "long", clean_start=False)
    assert back.connack is not None and back.connack.session_present
    back.close()  # it has no expiry now
    until(lambda: not redis.exists("mq:s:long"), "the session has ended")


def test_a_session_without_expiry_ends_with_its_take_over(cluster: ClusterProcess) -> None:
    first = five(cluster, "a", "x", clean_start=False)
    subscribe(first, "s", 1)
    second = five(cluster, "b", "x", clean_start=False)
    assert second.connack is not None and not second.connack.session_present
    packet = first.receive()
    assert isinstance(packet, Disconnect) and packet.reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert packet.properties["reason_string"]
    assert first.receive() is None


WILL: dict[str, Any] = {"will_topic": "will", "will_payload": b"gone", "will_qos": 1}


def delayed(seconds: int, expiry: int = 1000) -> dict[str, Any]:
    properties = {"session_expiry_interval": expiry}
    return {**WILL, "properties": properties, "will_properties": {"will_delay_interval": seconds, **PROPERTIES}}


def test_a_delayed_will_is_published_once_whoever_lives(cluster: ClusterProcess) -> None:
    watcher = five(cluster, "c", "watcher")
    subscribe(watcher, "will", 1)
    five(cluster, "a", "d", **delayed(1)).close()
    found = message(watcher)
    assert (found.payload, found.properties) == (b"gone", PROPERTIES)
    clients = [five(cluster, "a", f"d{n}", **delayed(1)) for n in range(10)]
    cluster["a"].kill()
    for _ in clients:
        assert message(watcher).payload == b"gone"
    cluster.settle("b", "c")
    assert watcher.ping() == []
    assert not cluster.redis.client().exists("mq:delayed")
    cluster["a"].start()


def test_a_client_that_comes_back_in_time_has_no_will(cluster: ClusterProcess) -> None:
    """At another node, also when its node has died; a client with a clean start has its will at once."""
    watcher = five(cluster, "c", "watcher")
    subscribe(watcher, "will", 1)
    redis = cluster.redis.client()
    five(cluster, "a", "back", **delayed(1000)).close()
    five(cluster, "a", "anew", **delayed(1000)).close()
    until(lambda: redis.zcard("mq:delayed") == 2, "both wills wait")
    five(cluster, "b", "back", clean_start=False, **FOREVER)
    until(lambda: redis.zcard("mq:delayed") == 1, "one is dropped")
    five(cluster, "b", "anew")
    assert message(watcher).payload == b"gone"
    taken = five(cluster, "a", "taken", **delayed(1000))
    five(cluster, "b", "taken", clean_start=False, **FOREVER)
    assert isinstance(taken.receive(), Disconnect)
    five(cluster, "a", "died", **delayed(1000))
    cluster["a"].kill()
    until(lambda: redis.zcard("mq:delayed") == 1, "its will waits")
    five(cluster, "b", "died", clean_start=False, **FOREVER)
    until(lambda: not redis.exists("mq:delayed"), "it is dropped")
    cluster.settle("b", "c")
    assert watcher.ping() == []
    cluster["a"].start()


@pytest.mark.one_shard
def test_the_end_of_a_session_brings_its_will(cluster: ClusterProcess) -> None:
    watcher = five(cluster, "c", "watcher")
    subscribe(watcher, "will", 1)
    five(cluster, "a", "purged", **delayed(1000)).close()
    five(cluster, "b", "expires", **delayed(1000, expiry=1)).close()
    assert message(watcher).payload == b"gone"
    until(lambda: stored_session(cluster.redis.client(), "purged").owner == b"", "its node has released it")
    cluster.redis.client().fcall("flockmq_purge", 0, "mq:", "purged")
    assert message(watcher).payload == b"gone"


def test_what_has_expired_is_not_delivered(cluster: ClusterProcess) -> None:
    reader = five(cluster, "a", "reader", **FOREVER)
    subscribe(reader, "e", 1)
    reader.close()
    writer = five(cluster, "b", "writer")
    short = {"message_expiry_interval": 1}
    writer.send(Publish("e", b"short", 1, packet_id=1, properties=short), Publish("e", b"long", 1, packet_id=2))
    writer.send(Publish("kept", b"short", 1, retain=True, packet_id=3, properties=short))
    redis = cluster.redis.client()
    until(lambda: redis.hexists("mq:retained", "kept"), "it is kept")
    cluster.settle()  # each node has a copy
    until(lambda: not redis.hexists("mq:retained", "kept"), "it has expired")
    other = five(cluster, "c", "other")

    def is_gone() -> bool:  # each node drops its own copy, and has its own idea of the time
        subscribe(other, "kept", 0)
        return other.ping() == []

    until(is_gone, "this node has dropped it, too")
    reader = five(cluster, "c", "reader", clean_start=False, **FOREVER)
    assert message(reader).payload == b"long"
