"""Delayed messages by the API and by `flockmq delayed`: listed in pages, and cancelled."""

from functools import partial
from typing import Any

import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from tests.conftest import StartBroker, StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

HTTP = {"http.listen": "127.0.0.1:0"}


def publish(port: int, *messages: tuple[str, bytes]) -> None:
    """Publish with QoS 1, and have it acknowledged."""
    with SocketClient(port, "publisher") as client:
        client.send(*(Publish(topic, text, 1, packet_id=n + 1) for n, (topic, text) in enumerate(messages)))
        for number in range(len(messages)):
            assert client.receive() == Puback(number + 1)


def pages(api: HttpClient, limit: int, **query: object) -> list[dict[str, Any]]:
    """All items of the list."""
    found, after = [], ""
    while after is not None:
        page = api.get("/delayed", limit=limit, after=after, **query)
        assert len(page["items"]) <= limit
        found += page["items"]
        after = page["next"]
    return found


def test_list_and_cancel(start_broker: StartBroker) -> None:
    """One node, and a cluster."""
    broker = start_broker(HTTP)
    api = HttpClient(broker["a"] if isinstance(broker, ClusterProcess) else broker)
    count = 1050  # more than one call of Redis looks at
    texts = [(f"$delayed/{600 - number % 3}/t/{number}", b"x" * (number % 7)) for number in range(count)]
    for begin in range(0, count, 350):
        publish(broker.port, *texts[begin : begin + 350])
    items = pages(api, 1000)
    assert len(items) == len({item["id"] for item in items}) == count
    page = items[:1000]  # the next one has been asked for later
    assert page == sorted(page, key=lambda item: item["due_in"]) and 500 < items[0]["due_in"] <= 600
    assert {(item["topic"], item["bytes"]) for item in items} == {(f"t/{n}", n % 7) for n in range(count)}
    assert {(item["client_id"], item["qos"], item["retain"]) for item in items} == {("publisher", 1, False)}
    assert [item["id"] for item in pages(api, 99)] == [item["id"] for item in items]
    publish(broker.port, ("$delayed/2/soon", b"cancelled"), ("$delayed/2/soon", b"published"))
    soon = pages(api, 100)[:2]
    assert [item["topic"] for item in soon] == ["soon", "soon"]
    with SocketClient(broker.port, "subscriber") as subscriber:
        subscriber.subscribe(("soon", 0))
        assert api.ask("DELETE", "/delayed", id=soon[0]["id"]).status == 204
        assert api.ask("DELETE", "/delayed", id=soon[0]["id"]).status == 404
        packet = subscriber.receive()
        assert isinstance(packet, Publish) and packet.payload == b"published"
        assert subscriber.ping() == []
    assert api.ask("DELETE", "/delayed", id="0" * 16).status == 404
    assert api.ask("DELETE", "/delayed", id="x").status == api.ask("GET", "/delayed", after="x").status == 400
    for item in items[-5:]:
        assert api.ask("DELETE", "/delayed", id=item["id"]).status == 204
    assert [item["id"] for item in pages(api, 500)] == [item["id"] for item in items[:-5]]


@pytest.mark.parametrize("store", ["sqlite"])
def test_a_cancelled_message_does_not_come_back(start_broker: StartBroker, store: str) -> None:
    """Nor does an id of before a restart cancel another message."""
    broker = start_broker(HTTP)
    publish(broker.port, ("$delayed/600/a", b""), ("$delayed/600/b", b""))
    first, second = pages(HttpClient(broker), 10)
    assert HttpClient(broker).ask("DELETE", "/delayed", id=first["id"]).status == 204
    broker.kill()
    broker.start()
    api = HttpClient(broker)
    (left,) = pages(api, 10)
    assert left["topic"] == second["topic"] == "b"
    for item in (first, second):
        assert api.ask("DELETE", "/delayed", id=item["id"]).status == 404
    assert api.ask("DELETE", "/delayed", id=left["id"]).status == 204


def test_command(start_cluster: StartCluster) -> None:
    cluster = start_cluster(HTTP)
    publish(cluster["a"].port, ("$delayed/600/a", b"1"), ("$delayed/500/b", b"22"))
    command = partial(HttpClient(cluster["c"]).command, "delayed")
    lines = command().splitlines()
    assert [line.split()[-3:] for line in lines[1:]] == [["b", "from", "publisher"], ["a", "from", "publisher"]]
    assert command("cancel", lines[1].split()[0]) == "cancelled\n"
    assert "no message with this id waits" in command("cancel", lines[1].split()[0], status=1)
    assert "an id" in command("cancel", status=2)
    until(lambda: len(command().splitlines()) == 2)
    command("cancel", lines[2].split()[0])
    assert command() == "no messages wait\n"
