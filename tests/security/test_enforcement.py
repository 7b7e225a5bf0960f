"""Rights to publish and to read are enforced wherever a message enters and leaves: see also tests/security."""

import pytest

from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe
from flockmq._speedups.session.rights import PUBLISH, READ, Rights
from flockmq.broker.auth.authenticator import Credentials, Identity, ReasonCode, Verdict
from tests.harness.inprocess import Client, KeepingStore, Node

Rules = dict[str, list[tuple[bool, int, bytes]]]


class ByRules:
    """Each client has the name that it gives, with the rights that stand here; without a row it may do everything."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def authenticate(self, credentials: Credentials) -> Verdict:
        rules = self.rules.get(credentials.client_id)
        rights = None if rules is None else Rights(rules)
        return Verdict(ReasonCode.ACCEPTED, Identity(credentials.client_id, rights))


def node_with(store: KeepingStore | None = None, **rules: list[tuple[bool, int, bytes]]) -> Node:
    return Node(store, authenticator=ByRules(rules))


def subscriber(node: Node, client_id: str, *filters: tuple[str, int], **connect: object) -> Client:
    client = Client(node, client_id, **connect)
    client.connack()
    client.send(Subscribe(packet_id=1, topic_filters=list(filters)))
    client.received = [packet for packet in client.take() if not isinstance(packet, Suback)]
    return client


def topics(client: Client) -> list[str]:
    return [packet.topic_name for packet in client.take() if isinstance(packet, Publish)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_may_not_be_published_goes_nowhere_but_is_acknowledged(qos: int) -> None:
    node = node_with(sensor=[(True, PUBLISH, b"mine/#")])
    watcher = subscriber(node, "watcher", ("#", qos))
    sensor = Client(node, "sensor")
    sensor.connack()
    for number, topic in enumerate(("yours", "mine/a"), 1):
        sensor.send(Publish(topic, b"1", qos=qos, retain=True, packet_id=number if qos else 0))
        if qos == 1:
            assert sensor.take_one(Puback).packet_id == number
        if qos == 2:
            assert sensor.take_one(Pubrec).packet_id == number
            sensor.send(Pubrel(packet_id=number))
            assert sensor.take_one(Pubcomp).packet_id == number
    assert topics(watcher) == ["mine/a"]
    assert node.counted("publish_denied") == 1
    assert topics(subscriber(node, "late", ("#", qos))) == ["mine/a"]


def test_what_is_denied_is_denied_again_when_the_plan_is_known() -> None:
    """The plan of a topic name remembers who was allowed: that must help nobody else."""
    node = node_with(good=[(True, PUBLISH, b"t")], bad=[(True, PUBLISH, b"other")])
    watcher = subscriber(node, "watcher", ("t", 0))
    good, bad = Client(node, "good"), Client(node, "bad")
    for _ in range(4):
        good.send(Publish("t", b"good"))
        bad.send(Publish("t", b"bad"), Publish("t", b"bad"))
    assert [packet.payload for packet in watcher.take()] == [b"good"] * 4
    assert node.counted("publish_denied") == 8


def test_a_wide_filter_gets_what_may_be_read() -> None:
    node = node_with(reader=[(True, READ, b"open/#"), (False, READ, b"open/secret")])
    reader = subscriber(node, "reader", ("#", 1))
    publisher = Client(node, "publisher")
    for qos in (0, 1):
        for topic in ("closed", "open/a", "open/secret"):
            publisher.send(Publish(topic, b"", qos=qos, packet_id=qos))
    assert topics(reader) == ["open/a", "open/a"]


def test_a_filter_of_which_nothing_may_be_read_is_refused() -> None:
    node = node_with(reader=[(True, READ, b"open/#")])
    reader = Client(node, "reader")
    reader.connack()
    reader.send(Subscribe(packet_id=7, topic_filters=[("closed/#", 1), ("open/+", 1), ("$SYS/#", 0)]))
    assert reader.take_one(Suback).reason_codes == [0x80, 1, 0x80]
    assert node.counted("subscribe_denied") == 2


@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_are_judged_when_they_are_delivered(qos: int) -> None:
    node = node_with(reader=[(True, READ, b"open/#")])
    publisher = Client(node, "publisher")
    for topic in ("closed", "open/a"):
        publisher.send(Publish(topic, b"x", qos=qos, retain=True, packet_id=qos))
    assert topics(subscriber(node, "reader", ("#", qos))) == ["open/a"]
    assert node.counted("delivery_denied") == 1


def test_queued_messages_are_judged_when_they_are_delivered() -> None:
    """CVE-2021-34434: a right that was revoked while the client was away."""
    rules: Rules = {"reader": [(True, READ, b"#")]}
    node = Node(authenticator=ByRules(rules))
    subscriber(node, "reader", ("#", 1), clean_start=False).close()
    publisher = Client(node, "publisher")
    for topic in ("a", "b", "a"):
        publisher.send(Publish(topic, b"", qos=1, packet_id=1))
    rules["reader"] = [(True, READ, b"a")]
    reader = Client(node, "reader", clean_start=False)
    reader.connack()
    assert topics(reader) == ["a", "a"]
    publisher.send(Publish("b", b"", qos=1, packet_id=1), Publish("b", b""), Publish("a", b""))
    assert topics(reader) == ["a"]
    session = node.sessions.get(b"reader")
    assert session is not None
    assert session.queue_length == 2  # sent and not acknowledged: the denied one has left the queue


def test_a_denied_message_stays_away_after_a_restart() -> None:
    node = node_with()
    subscriber(node, "reader", ("#", 1), clean_start=False).close()
    Client(node, "publisher").send(Publish("secret", b"", qos=1, packet_id=1))
    again = node_with(KeepingStore(node.store.after(len(node.store.told))), reader=[(True, READ, b"a")])
    node.close()
    reader = Client(again, "reader", clean_start=False)
    reader.connack()
    assert topics(reader) == []
    again.advance(1)  # no reply waits for the record that it is done
    third = node_with(KeepingStore(again.store.after(len(again.store.told))))
    again.close()
    reader = Client(third, "reader", clean_start=False)
    reader.connack()
    assert topics(reader) == []


def test_new_rules_act_on_clients_that_are_connected() -> None:
    node = node_with(reader=[(True, READ, b"a"), (True, PUBLISH, b"a")])
    reader = subscriber(node, "reader", ("#", 0))
    publisher = Client(node, "publisher")
    publisher.send(*[Publish("a", b"1"), Publish("b", b"1")] * 3)  # a plan is kept from the second time on
    assert topics(reader) == ["a"] * 3
    session = node.sessions.get(b"reader")
    assert session is not None
    assert session.set_rights(Rights([(True, READ, b"b")]))
    node.router.filters.forget_plans()
    publisher.send(Publish("a", b"2"), Publish("b", b"2"))
    assert topics(reader) == ["b"]
    reader.send(Publish("a", b"3"))
    assert node.counted("publish_denied") == 1


def test_the_same_rights_again_are_no_change() -> None:
    node = node_with(reader=[(True, READ, b"a")])
    subscriber(node, "reader", ("a", 1), clean_start=False).close()
    before = node.router.filters.generation
    Client(node, "reader", clean_start=False).connack()
    assert node.router.filters.generation == before


def test_a_will_may_go_where_its_client_may_publish() -> None:
    node = node_with(sensor=[(True, PUBLISH, b"mine/#")])
    refused = Client(node, "sensor", will_topic="yours", will_payload=b"x")
    assert refused.connack().reason_code == 5
    watcher = subscriber(node, "watcher", ("#", 0))
    sensor = Client(node, "sensor", will_topic="mine/will", will_payload=b"x")
    assert sensor.connack().reason_code == 0
    sensor.close()
    assert topics(watcher) == ["mine/will"]


def test_a_delayed_message_needs_the_right_for_its_topic_when_it_is_sent() -> None:
    """Neither a rule for `$delayed/...` nor one that is made later counts."""
    node = node_with(sensor=[(True, PUBLISH, b"mine/#")], other=[(True, PUBLISH, b"$delayed/#")])
    watcher = subscriber(node, "watcher", ("#", 1))
    for name, topic, code in (("sensor", "mine/a", 0), ("sensor", "yours", 0x87), ("other", "mine/b", 0x87)):
        client = Client(node, name, level=5)
        client.connack()
        client.send(Publish(f"$delayed/1/{topic}", b"1", qos=1, packet_id=1))
        assert client.take_one(Puback).reason_code == code
        client.close()
    assert node.counted("publish_denied") == 2
    node.advance(8)
    assert topics(watcher) == ["mine/a"]


def test_a_will_with_a_delay_needs_the_right_for_its_topic() -> None:
    node = node_with(sensor=[(True, PUBLISH, b"mine/#")])
    for topic in ("$delayed/1/yours", "$delayed/x/mine/will", "$delayed/1/$SYS/x"):
        assert Client(node, "sensor", will_topic=topic, will_payload=b"x").connack().reason_code == 5
    watcher = subscriber(node, "watcher", ("#", 0))
    sensor = Client(node, "sensor", will_topic="$delayed/1/mine/will", will_payload=b"x")
    assert sensor.connack().reason_code == 0
    sensor.close()
    assert topics(watcher) == []
    node.advance(8)
    assert topics(watcher) == ["mine/will"]
