"""Subscriptions of the configuration, of sessions that move between nodes."""

from flockmq._speedups.codec.packets import Packet, Puback, Publish, Unsubscribe
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.socket_client import SocketClient

RULES = '[{"topic_filter": "state/%c", "qos": 1}]'


def test_a_session_that_moves_has_its_subscriptions_once(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"mqtt.auto_subscribe": RULES})
    with SocketClient(cluster["c"].port, "publisher") as publisher:

        def publish(payload: bytes, *, retain: bool = False) -> None:
            publisher.send(Publish("state/s", payload, qos=1, packet_id=1, retain=retain))
            assert isinstance(publisher.receive(), Puback)

        def expect(client: SocketClient, *messages: tuple[bytes, bool]) -> None:
            """Exactly these come: payload, RETAIN."""
            for message in messages:
                packet = client.receive()
                assert isinstance(packet, Publish) and (packet.payload, packet.retain) == message
                client.send(Puback(packet_id=packet.packet_id))
            assert client.ping() == []

        publish(b"kept", retain=True)
        publisher.ping()
        with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
            expect(client, (b"kept", True))  # the subscription is in force everywhere
            publish(b"1")
            expect(client, (b"1", False))
        publish(b"while away")
        for name, payload in (("b", b"2"), ("c", b"3"), ("a", b"4")):
            with SocketClient(cluster[name].port, "s", clean_start=False) as client:
                assert client.connack is not None and client.connack.session_present
                publish(payload)
                expected = [(b"while away", False)] if name == "b" else []
                expect(client, *expected, (payload, False))
        with SocketClient(cluster["b"].port, "s", clean_start=False) as client:
            client.send(Unsubscribe(packet_id=1, topic_filters=["state/s"]))
            client.receive()
            publish(b"unsubscribed")
            expect(client)
        with SocketClient(cluster["c"].port, "s", clean_start=False) as client:
            expect(client, (b"kept", True))  # the rule holds for each CONNECT
            publish(b"5")
            expect(client, (b"5", False))


def test_a_clean_session_has_them_at_every_node(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"mqtt.auto_subscribe": RULES}, nodes="ab")
    with SocketClient(cluster["a"].port, "publisher") as publisher:
        for name in "aba":
            with SocketClient(cluster[name].port, "s") as client:

                def arrived(client: SocketClient = client, name: str = name) -> list[Packet]:
                    """The packets that have come of a message that is published now."""
                    publisher.send(Publish("state/s", name.encode(), qos=0))
                    publisher.ping()
                    return client.ping()

                for packet in until(arrived):  # CONNACK does not wait until the other node has the subscription
                    assert isinstance(packet, Publish) and packet.payload == name.encode()
