"""The log of a node alone is files beside its store: kept before PUBACK, gone on with after each end of the process."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from flockmq._speedups.codec.packets import Pingreq, Pingresp, Puback, Publish
from tests.harness.broker_process import until
from tests.harness.logs import OneNode, entries, logged_rows
from tests.harness.socket_client import SocketClient
from tests.streams.test_streams import EVERYTHING, five, message, numbers, publish, read, subscribe
from tests.web.http_client import HttpClient


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    """A node that logs everything."""
    settings = {"mqtt.sys_interval": 0.1, "analytics.max_waiting_bytes": 1 << 16, "http.listen": "127.0.0.1:0"}
    node = OneNode(tmp_path, {**EVERYTHING, **settings})
    node.start()
    yield node
    assert node.stop() == 0, node.log_text()
    node.check()


def payloads(node: OneNode) -> Counter[bytes]:
    return Counter(row.payload for row in logged_rows(node))


def not_logged(node: OneNode) -> int:
    with SocketClient(node.port, "watcher") as watcher:
        watcher.subscribe(("$SYS/broker/analytics/not logged", 0))
        return int(message(watcher).payload)


def test_puback_waits_for_the_log(node: OneNode) -> None:
    """While the files can't be written, messages of QoS 1 wait, and messages of QoS 0 are delivered, and counted."""
    node.log_folder.write_text("this is no folder")
    client = SocketClient(node.port, "c")
    client.subscribe(("t", 0))
    client.send(Publish("t", b"1", qos=1, packet_id=1))
    node.wait_for_log("store can't write")
    assert message(client).payload == b"1"
    ready = HttpClient(node).ask("GET", "//readyz")
    assert ready.status == HTTPStatus.SERVICE_UNAVAILABLE and b"the store can't write: " in ready.data
    count = 0
    while not_logged(node) == 0:
        client.send(Publish("t", b"zero" * 10_000))
        assert message(client).payload == b"zero" * 10_000
        count += 1
    client.send(Pingreq())
    assert client.receive() == Pingresp()  # and no PUBACK before it
    assert node.log_folder.is_file()
    node.log_folder.unlink()
    assert client.receive() == Puback(packet_id=1)
    publish(client, "other", b"2")
    found = payloads(node)
    assert HttpClient(node).ask("GET", "//readyz").status == HTTPStatus.OK
    assert found[b"1"] == found[b"2"] == 1 and 0 < found[b"zero" * 10_000] < count


def test_the_log_goes_on_after_each_end_of_the_process(node: OneNode) -> None:
    expected: Counter[bytes] = Counter()
    for number in range(6):
        client = SocketClient(node.port, "c")
        publish(client, "t", b"%d" % number)
        client.send(Publish("t", b"zero %d" % number))
        expected.update([b"%d" % number, b"zero %d" % number])
        until(lambda: payloads(node) == expected)
        if number % 2:
            node.kill()
            node.start()
        else:
            node.restart()
    assert len({node_id for node_id, _, _ in entries(node)}) == 1
    reader = five(node, "a", "reader")
    subscribe(reader, "$stream/earliest/t")
    assert Counter(message(reader).payload for _ in range(12)) == expected


def test_the_will_of_a_crash_is_logged_at_the_start(node: OneNode) -> None:
    SocketClient(node.port, "c", will_topic="w", will_payload=b"will", will_qos=1)
    node.kill()
    node.start()
    until(lambda: payloads(node) == Counter([b"will"]))
    assert [(row.client_id, row.topic) for row in logged_rows(node)] == [("c", "w")]


def test_a_torn_tail_costs_no_message_that_was_acknowledged(node: OneNode) -> None:
    writer = SocketClient(node.port, "c")
    publish(writer, "t", *numbers(0, 20))
    node.kill()
    (path,) = node.log_folder.iterdir()
    with path.open("ab") as file:
        file.write(path.read_bytes()[32:132])  # the first frame, cut short
    node.start()
    reader = five(node, "a", "reader")
    subscribe(reader, "$stream/1h/t")
    assert read(reader, 20) == numbers(0, 20)
    publish(SocketClient(node.port, "c"), "t", b"20")
    assert read(reader, 1) == [b"20"]
    assert payloads(node) == Counter(numbers(0, 21))


def test_without_topics_there_are_no_files(node: OneNode) -> None:
    node.settings.pop("analytics.topics")
    node.restart()
    publish(SocketClient(node.port, "c"), "t", b"1")
    assert not node.log_folder.exists()


def test_the_filters_are_read_again(node: OneNode) -> None:
    file = node.directory / "flockmq.toml"
    file.write_text("")
    node.settings.pop("analytics.topics")
    node.arguments += ["--config", str(file)]
    node.restart()
    client = SocketClient(node.port, "c")
    for number, topics in enumerate(('["one"]', "[]", '["#"]'), 1):
        since = len(node.log)
        file.write_text(f"[analytics]\ntopics = {topics}\n")
        os.kill(node.pid, signal.SIGHUP)
        node.wait_for_log("configuration read", since)
        publish(client, "one", b"1%d" % number)
        publish(client, "two", b"2%d" % number)
    assert payloads(node) == Counter([b"11", b"13", b"23"])
