"""The limits of a link: its queue, its rate, its window."""

import time

import pytest

from flockmq._speedups.codec.packets import Publish
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.socket_client import SocketClient
from tests.links.test_wanted import HTTP, links, publish, received, table
from tests.web.http_client import HttpClient

one_store = pytest.mark.parametrize("store", ["sqlite"])
KEPT = {"drop-new": ["a/0", "a/1", "a/2"], "drop-old": ["a/3", "a/4", "a/5"]}
TOPICS = [f"a/{number}" for number in range(6)]


def waiting(broker: BrokerProcess) -> int:
    """Messages in the queue of its one link."""
    (link,) = HttpClient(broker).get("/links")["items"]
    return int(link["waiting"])


@one_store
@pytest.mark.parametrize("policy", KEPT)
def test_a_full_queue_follows_the_policy_of_the_link(start_broker: StartBroker, policy: str) -> None:
    there = start_broker(HTTP)
    with SocketClient(there.port, "reader", clean_start=False) as reader:
        reader.subscribe(("a/#", 1))
    plain = {"wanted_only": False, "max_queued_messages": 3, "queue_policy": policy}
    here = start_broker(links(far=table(there.port, "a/# out 1", **plain)))
    here.wait_for_log("link is connected")
    there.stop()
    here.wait_for_log("link is not connected")
    here.kill()
    before = len(here.log)
    here.start()  # a restart without the other broker
    here.wait_for_log("link is not connected", since=before)
    publish(here, TOPICS)
    there.start()
    with SocketClient(there.port, "reader", clean_start=False) as reader:
        assert received(reader, 3) == KEPT[policy]
        until(lambda: waiting(here) == 0)  # the reader may have them before the link has the acknowledgements
        publish(here, ["a/last"])
        assert received(reader, 1) == ["a/last"]


@pytest.mark.parametrize("policy", KEPT)
def test_a_full_queue_in_a_cluster(start_cluster: StartCluster, policy: str) -> None:
    there = start_cluster(HTTP, nodes="x")["x"]
    with SocketClient(there.port, "reader", clean_start=False) as reader:
        reader.subscribe(("a/#", 1))
    plain = {"wanted_only": False, "max_queued_messages": 3, "queue_policy": policy}
    here = start_cluster(links(far=table(there.port, "a/# out 1", **plain)), nodes="ab")
    here.wait_for_log("link is connected")
    there.stop()
    here.wait_for_log("link is not connected")
    publish(here["a"], TOPICS)
    before = len(here.log)
    there.start()
    here.wait_for_log("link is connected", since=before)
    with SocketClient(there.port, "reader", clean_start=False) as reader:
        assert received(reader, 3) == KEPT[policy]


@one_store
def test_a_link_keeps_within_its_rate_and_its_window(start_broker: StartBroker) -> None:
    there = start_broker(HTTP)
    limits = {"wanted_only": False, "max_rate": 50, "max_inflight": 10}
    here = start_broker(links(far=table(there.port, "a out 1", **limits)))
    here.wait_for_log("link is connected")
    with SocketClient(there.port, "reader") as reader, SocketClient(here.port, "publisher") as publisher:
        reader.subscribe(("a", 1))
        began = time.monotonic()
        publisher.send(*(Publish("a", b"%d" % number, qos=1, packet_id=number) for number in range(1, 61)))
        assert received(reader, 60) == [f"{number}" for number in range(1, 61)]
        assert time.monotonic() - began > 0.9  # 60 messages less the first window, at 50 a second


@one_store
@pytest.mark.parametrize(("version", "qos"), [("3.1.1", 1), ("3.1.1", 2), ("5", 2)])
def test_the_limits_of_a_client_refuse_nothing_that_a_link_brings(
    start_broker: StartBroker, version: str, qos: int
) -> None:
    """The other broker drops what is refused; and below MQTT 5.0 it has no number of messages that may be under way."""
    there = start_broker(HTTP)
    limits = {"limits.receive_maximum": 10, "limits.max_awaiting_release": 5}
    plain = {"wanted_only": False, "version": version, "client_id": "x"}
    here = start_broker(links(far=table(there.port, f"a/# in {qos}", **plain)) | limits)
    here.wait_for_log("link is connected")
    with SocketClient(here.port, "reader", clean_start=False) as reader:
        reader.subscribe(("a/#", 1))
    here.stop()
    topics = [f"a/{number}" for number in range(100)]
    publish(there, topics, qos=qos)
    here.start()
    with SocketClient(here.port, "reader", clean_start=False) as reader:
        assert received(reader, 100) == topics
    (link,) = HttpClient(here).get("/links")["items"]
    assert link["state"] == "connected" and link["in"]["messages"] == 100


@one_store
def test_what_the_other_broker_has_no_room_for_now_is_sent_again(start_broker: StartBroker) -> None:
    there = start_broker(HTTP | {"limits.max_awaiting_release": 5})
    with SocketClient(there.port, "reader", clean_start=False) as reader:
        reader.subscribe(("a/#", 1))
    here = start_broker(links(far=table(there.port, "a/# out 2", wanted_only=False)))
    here.wait_for_log("link is connected")
    there.stop()
    here.wait_for_log("link is not connected")
    topics = [f"a/{number}" for number in range(20)]
    publish(here, topics, qos=2)
    before = len(here.log)
    there.start()
    with SocketClient(there.port, "reader", clean_start=False) as reader:
        assert received(reader, 20) == topics
    until(lambda: waiting(here) == 0)
    reasons = [line["reason"] for line in here.log[before:] if line["event"] == "link is not connected"]
    assert any("Quota exceeded" in reason for reason in reasons)
