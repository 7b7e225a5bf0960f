"""Events of clients below $SYS/broker/events/: all that operators of other brokers have missed, or got wrong."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Connect, Disconnect, Puback, Publish, Subscribe, Unsubscribe
from tests.conftest import StartBroker
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient
from tests.security.access_files import AccessFiles

pytestmark = pytest.mark.parametrize("store", ["sqlite", "cluster"])
ROOT = "$SYS/broker/events/"
Event = dict[str, Any]


class Reader:
    """Reads events with QoS 1."""

    def __init__(self, broker: Broker, topic_filter: str = ROOT + "#", **connect: Any) -> None:
        self.client = SocketClient(broker.port, "reader", **connect)
        assert self.client.subscribe((topic_filter, 1)) == [1]
        self.topics: list[str] = []  # of all events so far

    def next(self) -> Event:
        """The next event of another client."""
        while True:
            packet = self.client.receive()
            assert isinstance(packet, Publish), packet
            assert packet.qos == 1 and not packet.retain
            self.client.send(Puback(packet.packet_id))
            event: Event = json.loads(packet.payload)
            if not event.get("client_id", "").startswith(("reader", "settle-")):  # clients of this harness settle
                self.topics.append(packet.topic_name)
                return event

    def until(self, fits: Callable[[Event], bool]) -> list[Event]:
        """The next events of other clients, up to one that fits."""
        found = [self.next()]
        while not fits(found[-1]):
            found.append(self.next())
        return found

    def kinds(self, client_id: str, last: str) -> list[str]:
        """The kinds of the next events of a client, up to this kind."""
        found = self.until(lambda event: (event.get("client_id"), event["event"]) == (client_id, last))
        return [event["event"] for event in found if event.get("client_id") == client_id]


def test_the_life_of_a_client(broker: Broker) -> None:
    reader = Reader(broker)
    client = SocketClient(broker.port, "c", level=5, keep_alive=60)
    client.subscribe(("site/+/temp", 1), ("log", 0))
    client.send(Unsubscribe(packet_id=2, topic_filters=["site/+/temp", "never/had"]))
    client.receive()
    client.send(Disconnect())
    events = {event["event"]: event for event in reader.until(lambda event: event["event"] == "session_ended")}
    assert list(events) == [
        "session_created", "connected", "subscribed", "unsubscribed", "disconnected", "session_ended"
    ]  # fmt: skip
    assert reader.topics == [f"{ROOT}clients/c/{kind}" for kind in events]
    connected = events["connected"]
    assert {name: connected[name] for name in ("client_id", "username", "level", "keep_alive", "clean_start")} == {
        "client_id": "c", "username": None, "level": 5, "keep_alive": 60, "clean_start": True
    }  # fmt: skip
    assert connected["address"].startswith("127.0.0.1:") and connected["listener"] == "default"
    assert connected["session_present"] is False and events["session_created"]["persistent"] is False
    assert events["subscribed"]["subscriptions"] == [{"filter": "site/+/temp", "qos": 1}, {"filter": "log", "qos": 0}]
    assert events["unsubscribed"]["filters"] == ["site/+/temp"]
    disconnected = events["disconnected"]
    assert disconnected["reason"] == "disconnected by the client" and disconnected["seconds"] < 60
    assert disconnected["connection"] == connected["connection"] > 0
    assert all(event["node"] and event["time"].endswith("Z") for event in events.values())


def test_a_connection_lost_without_disconnect_has_its_event(broker: Broker) -> None:
    """moscajs/mosca#92, emqx#1330: each end has an event: of the network, and by an operator or a fault."""
    reader = Reader(broker)
    SocketClient(broker.port, "lost").close()
    assert reader.until(lambda event: event["event"] == "disconnected")[-1]["reason"] == "closed by the client"
    wrong = SocketClient(broker.port, "wrong", level=5)
    wrong.send(b"\xf3\x00")
    event = reader.until(lambda event: event["event"] == "disconnected")[-1]
    assert event["client_id"] == "wrong" and event["reason_code"] == 0x81


def test_the_order_at_a_take_over(broker: Broker) -> None:
    """aedes#8, MQTTnet#373, emqx#7240: an old `disconnected` after the new `connected` made clients look offline."""
    reader = Reader(broker, ROOT + "clients/c/+")
    first = SocketClient(broker.port, "c", level=5)
    second = SocketClient(broker.port, "c", level=5)
    second.ping()
    found = list(
        reader.until(lambda event: event["event"] == "connected")
        + reader.until(lambda event: event["event"] == "connected")
    )
    while sum(event["event"] == "disconnected" for event in found) < 1:
        found.append(reader.next())  # of another node it may be later
    one, two = [event["connection"] for event in found if event["event"] == "connected"]
    (old,) = [event for event in found if event["event"] == "disconnected"]
    assert one < two and old["connection"] == one, "the number says which is later"
    assert old["reason_code"] == 0x8E and "taken over" in old["reason"]
    first.close()


@pytest.mark.one_node
def test_at_one_node_the_old_connection_ends_first(broker: Broker) -> None:
    reader = Reader(broker, ROOT + "clients/+/+")
    clients = [SocketClient(broker.port, "c") for _ in range(3)]
    clients[-1].close()
    kinds = [event["event"] for event in reader.until(lambda event: event.get("reason") == "closed by the client")]
    assert [kind for kind in kinds if kind.endswith("connected")] == ["connected", "disconnected"] * 3


def test_numbers_of_connections_grow_over_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker()
    reader = Reader(broker)
    SocketClient(broker.port, "c")
    before = reader.until(lambda event: event["event"] == "connected")[-1]["connection"]
    broker.stop()
    broker.start()
    reader = Reader(broker)
    SocketClient(broker.port, "c")
    assert reader.until(lambda event: event["event"] == "connected")[-1]["connection"] > before


@pytest.mark.one_node
def test_the_end_of_the_node_is_the_end_of_connections(start_broker: StartBroker) -> None:
    """Their events are stored for a reader that comes back."""
    broker = start_broker({"events.rate": 1000})
    reader = Reader(broker, ROOT + "clients/+/disconnected", clean_start=False)
    clients = [SocketClient(broker.port, f"c{number}") for number in range(40)]
    reader.client.close()
    broker.stop()
    broker.start()
    names = {f"c{number}" for number in range(len(clients))}
    back = SocketClient(broker.port, "reader", clean_start=False)
    while names:
        packet = back.receive()
        assert isinstance(packet, Publish)
        back.send(Puback(packet.packet_id))
        names.discard(json.loads(packet.payload)["client_id"])


LEVELS = {
    "a/b": "a%2Fb",
    "+": "%2B",
    "#": "%23",
    "100%": "100%25",
    "/+/#": "%2F%2B%2F%23",
    "x/connected": "x%2Fconnected",
    "Küche": "Küche",
    "$SYS": "$SYS",
    " ": " ",
    "é" * 3000: "é" * 2048,
}


def test_any_client_id_is_one_level(broker: Broker) -> None:
    """A client that calls itself `x/disconnected` or `+` forges no event of another, and hides from no filter."""
    reader = Reader(broker, ROOT + "clients/+/connected")
    for client_id, level in LEVELS.items():
        SocketClient(broker.port, client_id).close()
        assert reader.next()["client_id"] == client_id
        assert reader.topics[-1] == f"{ROOT}clients/{level}/connected"


def test_control_characters(start_broker: StartBroker) -> None:
    broker = start_broker({"mqtt.control_characters": True})
    reader = Reader(broker)
    SocketClient(broker.port, 'a\x01\n\x7f"\\').close()
    assert reader.until(lambda event: event["event"] == "connected")[-1]["client_id"] == 'a\x01\n\x7f"\\'
    assert reader.topics[-1] == ROOT + 'clients/a%01%0A%7F"\\/connected'


def test_persistent_sessions(broker: Broker) -> None:
    """One session, and one event each in the cluster."""
    reader = Reader(broker)
    client = SocketClient(broker.port, "p", clean_start=False)
    client.subscribe(("t", 1))
    client.send(Disconnect())
    assert reader.kinds("p", "disconnected") == ["session_created", "connected", "subscribed", "disconnected"]
    SocketClient(broker.port, "p", clean_start=False).close()
    assert reader.kinds("p", "disconnected") == ["connected", "disconnected"]
    SocketClient(broker.port, "p").close()  # a clean one takes its place
    kinds = [reader.next()["event"] for _ in range(5)]
    assert sorted(kinds) == ["connected", "disconnected", "session_created", "session_ended", "session_ended"]


def test_a_refused_client_is_not_connected(start_broker: StartBroker, tmp_path: Path) -> None:
    """emqx#2993: a wrong password made a `connected`, and no `disconnected`."""
    files = AccessFiles(tmp_path)
    files.users("ops")
    files.rules("user ops", f"topic read {ROOT}#")
    broker = files.start(start_broker, auth__allow_anonymous=True)
    reader = Reader(broker, username="ops", password=b"ops")
    with pytest.raises(ConnectionError):
        SocketClient(broker.port, "bad", username="ops", password=b"hunter2").ping()
    event = reader.next()
    assert (event["event"], event["client_id"], event["username"]) == ("refused", "bad", "ops")
    assert event["reason_code"] == 0x86 and "hunter2" not in json.dumps(event)


def test_events_need_a_rule_that_names_them(start_broker: StartBroker, tmp_path: Path) -> None:
    files = AccessFiles(tmp_path)
    files.users("ann", "ops", "some")
    files.rules(
        *("user ann", "topic read #"),
        *("user ops", f"topic read {ROOT}#"),
        *("user some", f"topic read {ROOT}clients/mine/+"),
    )
    broker = files.start(start_broker, auth__allow_anonymous=True)
    ann = SocketClient(broker.port, "ann", username="ann", password=b"ann")
    assert ann.subscribe((ROOT + "#", 1), ("#", 1), ("$SYS/#", 1)) == [0x80, 1, 0x80]
    some = SocketClient(broker.port, "some", username="some", password=b"some")
    some.subscribe((ROOT + "#", 1))
    ops = Reader(broker, username="ops", password=b"ops")
    SocketClient(broker.port, "mine", username="ann", password=b"ann")
    SocketClient(broker.port, "theirs", username="ann", password=b"ann")
    ops.until(lambda event: (event["client_id"], event["event"]) == ("theirs", "connected"))
    seen = {json.loads(packet.payload)["client_id"] for packet in some.ping() if isinstance(packet, Publish)}
    assert seen == {"mine"}
    assert not [packet for packet in ann.ping() if isinstance(packet, Publish)]


def test_no_client_publishes_an_event(broker: Broker) -> None:
    reader = Reader(broker)
    client = SocketClient(broker.port, "c", level=5)
    for topic in ("clients/c/connected", "suppressed", "clients/other/disconnected"):
        client.send(Publish(ROOT + topic, b"{}", 1, packet_id=1))
        assert isinstance(answer := client.receive(), Puback) and answer.reason_code == 0x87
    client.send(Disconnect())
    kinds = [event["event"] for event in reader.until(lambda event: event["event"] == "session_ended")]
    assert kinds == ["session_created", "connected", "disconnected", "session_ended"]


def test_events_of_one_kind_and_of_one_client(broker: Broker) -> None:
    gone = Reader(broker, ROOT + "clients/+/disconnected")
    SocketClient(broker.port, "a").close()
    SocketClient(broker.port, "b").close()
    assert {gone.next()["client_id"], gone.next()["client_id"]} == {"a", "b"}
    assert {topic.rpartition("/")[2] for topic in gone.topics} == {"disconnected"}


def test_a_persistent_reader_misses_nothing_while_it_is_away(broker: Broker) -> None:
    reader = Reader(broker, ROOT + "clients/c/connected", clean_start=False)
    reader.client.send(Disconnect())
    reader.client.receive()
    SocketClient(broker.port, "c").ping()
    back = SocketClient(broker.port, "reader", clean_start=False)
    packet = back.receive()
    assert isinstance(packet, Publish) and json.loads(packet.payload)["client_id"] == "c"


def test_a_shared_subscription_of_readers(broker: Broker) -> None:
    readers = [SocketClient(broker.port, f"r{number}") for number in range(2)]
    for each in readers:
        each.subscribe((f"$share/hooks/{ROOT}clients/+/connected", 1))
    for number in range(6):
        SocketClient(broker.port, f"c{number}").close()
    seen: list[str] = []
    end = time.monotonic() + 20
    while len(seen) < 6 and time.monotonic() < end:
        for each in readers:
            for packet in each.ping():
                if isinstance(packet, Publish):
                    each.send(Puback(packet.packet_id))
                    seen.append(json.loads(packet.payload)["client_id"])
    assert sorted(name for name in seen if name.startswith("c")) == [f"c{number}" for number in range(6)]


@pytest.mark.one_node
def test_a_storm_is_counted_in_place_of_published(start_broker: StartBroker) -> None:
    broker = start_broker({"events.rate": 10})
    reader = Reader(broker, ROOT + "#")
    clients = [SocketClient(broker.port, f"c{number}") for number in range(50)]
    events = reader.until(lambda event: event["event"] == "suppressed")
    while sum(number_of(event, "connected") for event in events) < 50:
        events.append(reader.next())
    published = sum(event["event"] == "connected" for event in events)
    assert published < 30
    assert {"session_created", "connected"} >= set(events[-1].get("events", {"connected": 0}))
    assert len(clients) == 50


def number_of(event: Event, kind: str) -> int:
    """How many events of a kind this one is."""
    return int(event["events"].get(kind, 0)) if event["event"] == "suppressed" else int(event["event"] == kind)


@pytest.mark.one_node
def test_no_events(start_broker: StartBroker) -> None:
    broker = start_broker({"events.rate": 0})
    with SocketClient(broker.port, "reader") as reader:
        reader.subscribe((ROOT + "#", 1))
        SocketClient(broker.port, "c").close()
        SocketClient(broker.port, "d").ping()
        assert reader.ping() == []


@pytest.mark.one_node
def test_lost_messages_and_a_reader_that_loses_events(start_broker: StartBroker) -> None:
    """emqx has no end of `message_dropped` when the reader of these events is the slow one."""
    broker = start_broker({"limits.max_queued_messages": 5})
    for name in ("slow", "also"):  # `also` reads events and comes back for none
        with SocketClient(broker.port, name, clean_start=False) as client:
            client.subscribe(("t", 1), *[(ROOT + "#", 1)] * (name == "also"))
    reader = Reader(broker, ROOT + "clients/+/dropped")
    sender = SocketClient(broker.port, "sender")
    for number in range(1, 21):
        sender.send(Publish("t", b"x", 1, packet_id=number))
        assert isinstance(sender.receive(), Puback)
    event = reader.next()
    assert event["client_id"] == "slow" and event["queue_full"] == event["messages"] >= 1
    assert event["output_full"] == 0
    assert broker.wait_for_log("queue is full: messages are dropped", client_id="also")
    time.sleep(0.6)
    assert [packet for packet in reader.client.ping() if isinstance(packet, Publish)] == []


@pytest.mark.one_node
def test_a_client_that_is_too_fast(start_broker: StartBroker) -> None:
    broker = start_broker({"quotas.messages_per_second": 5})
    reader = Reader(broker, ROOT + "clients/+/throttled")
    sender = SocketClient(broker.port, "fast")
    sender.send(*[Publish("t", b"x")] * 40)
    assert reader.next()["client_id"] == "fast"


def test_many_filters_in_a_packet_are_not_all_shown(broker: Broker) -> None:
    reader = Reader(broker, ROOT + "clients/c/subscribed")
    client = SocketClient(broker.port, "c")
    client.send(Subscribe(packet_id=1, topic_filters=[(f"f/{number}", 0) for number in range(150)]))
    event = reader.next()
    assert len(event["subscriptions"]) == 100 and event["more"] == 50
    client.send(Subscribe(packet_id=2, topic_filters=[("x" * 60_000, 0)]))
    event = reader.next()
    assert event["subscriptions"] == [] and event["more"] == 1


def test_connect_of_a_broker_without_readers_makes_nothing(broker: Broker) -> None:
    client = SocketClient(broker.port)
    client.send(Connect(client_id="c", protocol_level=4, keep_alive=0))
    client.receive()
    assert client.ping() == []
