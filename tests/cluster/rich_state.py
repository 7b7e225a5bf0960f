"""A rich state, made through clients of levels 4 and 5 at running nodes, to be found elsewhere."""

import itertools
from typing import Any

from flockmq._speedups.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.shared_subscriber import JOBS, NEVER, Worker
from tests.harness.socket_client import SocketClient
from tests.harness.transaction_client import COMMITTED, DONE, TransactionClient, row
from tests.web.http_client import HttpClient

SETTINGS = {"shared.redispatch": 1000, "http.listen": "127.0.0.1:0", "mqtt.sys_interval": 0}
CONFIG = "[shared]\nredispatch = 1000\n[cluster]\nlease = 20\n"
AS_PUBLISHED = 8
PROPERTIES: dict[str, Any] = {"content_type": "text/plain", "user_property": [("a", "1"), ("a", "2")]}
HOUR = {"session_expiry_interval": 3600}
WORK = [b"w0", b"w1", b"w2", b"w3", b"w4"]


class RichState:
    """Makes the state at some nodes, and later looks for it at others.

    Args:
        nodes: at which it is made.
    """

    def __init__(self, *nodes: BrokerProcess) -> None:
        self._ports = itertools.cycle(node.port for node in nodes)
        self._http = HttpClient(nodes[0])
        self._open: list[SocketClient] = []  # connected until the nodes end
        self._make()

    def _client(self, client_id: str, level: int = 4, **connect: Any) -> SocketClient:
        return SocketClient(next(self._ports), client_id, level=level, **connect)

    def _publish(self, *messages: Publish, level: int = 4) -> None:
        with self._client("publisher", level) as publisher:
            for message in messages:
                publisher.send(message)
                if message.qos == 2:
                    assert publisher.receive() == Pubrec(message.packet_id)
                    publisher.send(Pubrel(message.packet_id))
                    assert publisher.receive() == Pubcomp(message.packet_id)
                elif message.qos:
                    assert publisher.receive() == Puback(message.packet_id)
            publisher.send(Disconnect())
            assert publisher.receive() is None

    # ---- making it ----

    def _make(self) -> None:
        self._make_watcher()
        self._make_four()
        self._make_five()
        self._make_sender()
        self._make_group()
        self._make_wills()
        self._publish(
            Publish("kept/1", b"retained", 1, True, packet_id=1),
            Publish("$delayed/600/later", b"delayed", 1, packet_id=2),
            Publish("$delayed/500/later", b"delayed", 2, True, packet_id=3),
        )
        with TransactionClient(next(self._ports)) as client:
            assert client.stage("q/3/a/0", row("x", b"published")) == DONE
            assert client.commit("q/3", a=1) == DONE
            assert client.stage("q/4/a/0", row("x", b"first")) == client.stage("q/4/a/1", row("x", b"second")) == DONE
        assert self._http.ask("POST", "/bans", {"kind": "client_id", "value": "evil"}).status == 200

    def _make_watcher(self) -> None:
        watcher = self._client("watcher", clean_start=False)
        watcher.subscribe(("wills/#", 1))
        leave(watcher)

    def _make_four(self) -> None:
        """Level 4: in flight are one of QoS 1, one with PUBREC, one of QoS 2; one is acknowledged; two wait."""
        four = self._client("four", clean_start=False)
        assert four.subscribe(("a/#", 1), ("b/#", 2)) == [1, 2]
        self._publish(
            Publish("a/1", b"1", 1, packet_id=1),
            Publish("b/2", b"2", 2, packet_id=2),
            Publish("b/3", b"3", 2, packet_id=3),
            Publish("a/4", b"4", 1, packet_id=4),
        )
        assert [numbered(four.receive()) for _ in range(4)] == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]
        four.send(Puback(4), Pubrec(2))
        assert four.receive() == Pubrel(2)
        leave(four)
        self._publish(Publish("a/5", b"5", 1, packet_id=1), Publish("b/6", b"6", 2, packet_id=2))

    def _make_five(self) -> None:
        """Level 5: options, an identifier, properties, expiry; and a connection that is there until the end."""
        five = self._client("five", 5, clean_start=False, properties=HOUR)
        five.send(Subscribe(1, [("c/#", 1 | AS_PUBLISHED)], {"subscription_identifier": 7}))
        assert isinstance(five.receive(), Suback)
        leave(five)
        properties = PROPERTIES | {"message_expiry_interval": 1000}
        self._publish(Publish("c/1", b"five", 1, True, packet_id=1, properties=properties), level=5)
        connected = self._client("connected", 5, clean_start=False, properties=HOUR)
        connected.subscribe(("d/#", 1))
        self._publish(Publish("d/1", b"d", 1, packet_id=1))
        assert numbered(connected.receive()) == (1, b"d")
        self._open.append(connected)

    def _make_sender(self) -> None:
        """A message of QoS 2 that awaits PUBREL."""
        sender = self._client("sender", clean_start=False)
        sender.send(Publish("a/released", b"once", 2, packet_id=9))
        assert sender.receive() == Pubrec(9)
        leave(sender)

    def _make_group(self) -> None:
        """A declared group whose one subscriber has two messages, and three wait."""
        settings = {"window": 2, "strategy": "publisher", "max_deliveries": 9}
        assert self._http.ask("PUT", "/group", settings, group=JOBS).status == 204
        worker = Worker(next(self._ports), persistent=True)
        self._publish(*(Publish("jobs/x", payload, 1, packet_id=1) for payload in WORK))
        until(lambda: len(worker.look().seen) == 2)
        worker.client.send(Disconnect())
        assert worker.client.receive() is None

    def _make_wills(self) -> None:
        """One of a connection that is there at the end, and one that waits for its delay."""
        self._open.append(self._client("dying", will_topic="wills/now", will_payload=b"now", will_qos=1))
        self._delayed_will("later").close()
        until(lambda: self._delayed_wills() == ["later"])
        self._open.append(self._delayed_will("delaying"))
        self._open.append(self._client("brief", 5, clean_start=False, properties=HOUR))
        self._open[-1].subscribe(("e/#", 1))
        leave(self._open.pop())
        self._open.append(self._back("brief", 5))  # without an interval: the session ends with this connection

    def _delayed_will(self, client_id: str) -> SocketClient:
        return self._client(
            client_id,
            5,
            clean_start=False,
            properties=NEVER,
            will_topic=f"wills/{client_id}",
            will_payload=client_id.encode(),
            will_qos=1,
            will_properties={"will_delay_interval": 600},
        )

    def _delayed_wills(self) -> list[str]:
        return sorted(will["client_id"] for will in self._http.ask("GET", "/wills").json["items"])

    def end(self, nodes: Any, how: str) -> None:
        """End all nodes by `kill` or `stop`."""
        getattr(nodes, how)()
        for client in self._open:
            client.close()

    # ---- finding it ----

    def find(self, *nodes: BrokerProcess) -> None:
        """Look for all of it at these nodes; this changes it."""
        self._ports = itertools.cycle(node.port for node in nodes)
        self._http = HttpClient(nodes[0])
        self._find_four_and_sender()
        self._find_five()
        self._find_group()
        self._find_wills()
        self._find_transactions()
        evil = SocketClient(next(self._ports))
        evil.send(Connect(client_id="evil"))
        refused = evil.receive()
        assert isinstance(refused, Connack) and refused.reason_code != 0, refused
        assert [ban["value"] for ban in self._http.ask("GET", "/bans").json["items"]] == ["evil"]

    def _back(self, client_id: str, level: int = 4, **connect: Any) -> SocketClient:
        client = self._client(client_id, level, clean_start=False, **connect)
        assert client.connack is not None and client.connack.session_present, client_id
        return client

    def _find_four_and_sender(self) -> None:
        four = self._back("four")
        expected: list[Packet] = [
            Publish("a/1", b"1", 1, dup=True, packet_id=1),
            Pubrel(2),
            Publish("b/3", b"3", 2, dup=True, packet_id=3),
            Publish("a/5", b"5", 1, packet_id=5),
            Publish("b/6", b"6", 2, packet_id=6),
        ]
        assert [four.receive() for _ in expected] == expected
        four.send(Puback(1), Pubcomp(2), Pubrec(3), Puback(5), Pubrec(6))
        assert [four.receive(), four.receive()] == [Pubrel(3), Pubrel(6)]
        four.send(Pubcomp(3), Pubcomp(6))
        sender = self._back("sender")
        sender.send(Publish("a/released", b"once", 2, dup=True, packet_id=9))
        assert sender.receive() == Pubrec(9)
        sender.send(Pubrel(9))
        assert sender.receive() == Pubcomp(9)
        assert four.receive() == Publish("a/released", b"once", 1, packet_id=7)
        four.send(Puback(7))
        assert four.ping() == sender.ping() == []

    def _find_five(self) -> None:
        found = self._back("five", 5, properties=HOUR).receive()
        assert isinstance(found, Publish)
        assert (found.payload, found.qos, found.retain, found.dup, found.packet_id) == (b"five", 1, True, False, 1)
        left = found.properties.pop("message_expiry_interval")
        assert 900 < left <= 1000
        assert found.properties.pop("subscription_identifier") in (7, [7])
        assert found.properties == PROPERTIES
        assert self._back("connected", 5, properties=HOUR).receive() == Publish("d/1", b"d", 1, dup=True, packet_id=1)
        reader = self._client("reader")
        reader.send(Subscribe(1, [("kept/#", 1), ("c/#", 0)]))
        retained = [packet for packet in (reader.receive() for _ in range(3)) if isinstance(packet, Publish)]
        assert sorted((packet.topic_name, packet.payload, packet.retain) for packet in retained) == [
            ("c/1", b"five", True),
            ("kept/1", b"retained", True),
        ]

    def _find_group(self) -> None:
        found = self._http.ask("GET", "/group", group=JOBS).json
        assert (found["declared"], found["waiting"]) == (True, 3)
        assert (found["settings"]["window"], found["settings"]["strategy"]) == (2, "publisher")
        worker = Worker(next(self._ports), persistent=True)
        assert worker.client.connack is not None and worker.client.connack.session_present
        until(lambda: len(worker.look().seen) == 2)
        assert [numbered(packet) for packet in worker.held] == [(1, b"w0"), (2, b"w1")]
        assert all(isinstance(packet, Publish) and packet.dup for packet in worker.held)
        assert worker.wait_for(5) == WORK

    def _find_transactions(self) -> None:
        reader = self._client("reader of transactions")
        reader.subscribe(("x", 1))
        with TransactionClient(next(self._ports)) as client:
            assert client.commit("q/3", a=1) == COMMITTED
            assert client.commit("q/4", a=2) == DONE
        assert [numbered(reader.receive()) for _ in range(2)] == [(1, b"first"), (2, b"second")]

    def _find_wills(self) -> None:
        watcher = self._back("watcher")
        assert numbered(watcher.receive()) == (1, b"now")
        assert self._delayed_wills() == ["delaying", "later"]
        for number, client_id in enumerate(("later", "delaying"), 2):
            self._client(client_id, 5).send(Disconnect())  # its session ends, so the will is published
            assert numbered(watcher.receive()) == (number, client_id.encode())
        assert watcher.ping() == []
        brief = self._client("brief", 5, clean_start=False)
        assert brief.connack is not None and not brief.connack.session_present


def leave(client: SocketClient) -> None:
    """Disconnect; the node has noticed when this returns."""
    client.send(Disconnect())
    assert client.receive() is None


def numbered(packet: Packet | None) -> tuple[int, bytes]:
    """Packet identifier and payload of a message."""
    assert isinstance(packet, Publish), packet
    return packet.packet_id, packet.payload
