"""The $SYS tree has the names that exporters for Mosquitto read."""

from collections.abc import Callable

import pytest

from flockmq._speedups.codec.packets import Puback, Publish
from tests.harness.cluster_process import Broker
from tests.harness.socket_client import SocketClient

ROOT = "$SYS/broker/"
NAMES = {
    "bytes/received",
    "bytes/sent",
    "clients/active",
    "clients/connected",
    "clients/disconnected",
    "clients/inactive",
    "clients/maximum",
    "clients/total",
    "heap/current",
    "heap/maximum",
    "messages/received",
    "messages/sent",
    "messages/stored",
    "publish/messages/dropped",
    "publish/messages/received",
    "publish/messages/sent",
    "retained messages/count",
    "shared_subscriptions/count",
    "store/messages/bytes",
    "store/messages/count",
    "subscriptions/count",
    "uptime",
    "version",
    *(
        f"load/{name}/{span}"
        for name in ("bytes/received", "bytes/sent", "connections", "messages/received", "messages/sent", "sockets")
        for span in ("1min", "5min", "15min")
    ),
}


@pytest.mark.one_node
def test_names_and_values(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker({"mqtt.sys_interval": 0.1})
    with SocketClient(broker.port, "away", clean_start=False) as client:
        client.subscribe(("queued", 1))
    with SocketClient(broker.port, "c") as client:
        for number, retain in enumerate((False, True), 1):
            client.send(Publish("queued", b"x" * 100, 1, retain, packet_id=number))
            assert client.receive() == Puback(number)
        client.subscribe((ROOT + "#", 0))
        values: dict[str, str] = {}
        while not values.keys() >= NAMES or not (
            int(values["store/messages/count"]) >= 1 and int(values["store/messages/bytes"]) >= 100
        ):
            packet = client.receive()
            assert isinstance(packet, Publish)
            values[packet.topic_name.removeprefix(ROOT)] = packet.payload.decode()
    assert int(values["heap/current"]) > 1 << 20
    assert int(values["heap/maximum"]) > 1 << 20
