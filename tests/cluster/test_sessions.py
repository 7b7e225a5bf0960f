"""A session is one in the whole cluster: it moves, is taken over, ends, and leaves nothing behind: G3, G5, I4, I5."""

import os
import threading
import time
from functools import partial

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_session
from tests.web.http_client import HttpClient


def publish(cluster: ClusterProcess, name: str, *payloads: bytes, qos: int = 1, topic: str = "t") -> None:
    """Publish at a node, and have all acknowledged."""
    with SocketClient(cluster[name].port, f"publisher {os.urandom(4).hex()}") as client:
        for packet_id, payload in enumerate(payloads, 1):
            client.send(Publish(topic, payload, qos=qos, packet_id=packet_id))
            if qos == 2:
                assert isinstance(client.receive(), Pubrec)
                client.send(Pubrel(packet_id=packet_id))
            assert isinstance(client.receive(), Pubcomp if qos == 2 else Puback)


def messages(client: SocketClient, count: int) -> list[tuple[bytes, int, bool]]:
    """The next messages: payload, packet identifier, DUP."""
    found = []
    for _ in range(count):
        packet = client.receive()
        assert isinstance(packet, Publish), packet
        found.append((packet.payload, packet.packet_id, packet.dup))
    return found


def present(client: SocketClient) -> bool:
    assert client.connack is not None
    return client.connack.session_present


@pytest.mark.one_shard
def test_a_session_that_comes_back_to_its_node_makes_no_change(cluster: ClusterProcess) -> None:
    """Its routes are still there. At another node each filter is a route; the first node withdraws its route later."""
    redis = cluster.redis.client()

    def connected(name: str) -> int:
        """The client connects, and gets a message of QoS 0. Returns the number of the last change."""
        with SocketClient(cluster[name].port, "s", clean_start=False) as client:
            if not present(client):
                client.subscribe(("t/1", 1), ("t/2", 2))
            publish(cluster, "c", b"1", qos=1, topic="t/1")
            with SocketClient(cluster["c"].port, "publisher") as publisher:
                publisher.send(Publish("t/2", b"0"))
                found = {payload: packet_id for payload, packet_id, _ in messages(client, 2)}
            assert found.keys() == {b"1", b"0"}
            client.send(Puback(found[b"1"]), Disconnect())
        until(lambda: not redis.keys("mq:owned:*"))
        return int(redis.get("mq:change") or 0)

    first = connected("a")
    assert connected("a") == connected("a") == first
    assert connected("b") == first + 1
    assert connected("a") == connected("b") == first + 1


@pytest.mark.one_shard
def test_a_subscription_that_the_session_has_makes_no_change(cluster: ClusterProcess) -> None:
    """Most clients subscribe at each connect. Other options or another identifier are a change, and retained messages
    are sent in any case.
    """
    redis = cluster.redis.client()
    with SocketClient(cluster["b"].port, "setter") as setter:
        setter.send(Publish("t", b"kept", retain=True))

    def changes() -> int:
        return int(redis.get("mq:change") or 0)

    def subscribed(identifier: int, qos: int) -> int:
        """The client is back, and subscribes. Returns the number of changes."""
        before = changes()
        with SocketClient(
            cluster["a"].port, "s", level=5, clean_start=False, properties={"session_expiry_interval": 600}
        ) as client:
            properties = {"subscription_identifier": identifier} if identifier else {}
            client.send(Subscribe(7, [("t", qos)], properties))
            assert isinstance(client.receive(), Suback)
            retained = client.receive()
            assert isinstance(retained, Publish) and retained.payload == b"kept"
            client.send(Disconnect())
        until(lambda: not redis.keys("mq:owned:*"))
        return changes() - before

    assert subscribed(5, 1) > 0
    assert subscribed(5, 1) == 0
    assert subscribed(6, 1) == 1
    assert subscribed(6, 1) == 0
    assert subscribed(6, 2) == 1
    assert subscribed(0, 2) == 1
    assert subscribed(0, 2) == 0


def test_a_session_goes_from_node_to_node(cluster: ClusterProcess) -> None:
    """In order, with its packet identifiers, with DUP on what was sent before; A3, A5."""
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        assert not present(client)
        client.subscribe(("t", 1))
        publish(cluster, "b", b"1", b"2", b"3")
        assert messages(client, 3) == [(b"1", 1, False), (b"2", 2, False), (b"3", 3, False)]
        client.send(Puback(packet_id=1))
        client.ping()
    publish(cluster, "c", b"4")
    with SocketClient(cluster["b"].port, "s", clean_start=False) as client:
        assert present(client)
        assert messages(client, 3) == [(b"2", 2, True), (b"3", 3, True), (b"4", 4, False)]
        publish(cluster, "a", b"5")
        assert messages(client, 1) == [(b"5", 5, False)]
        client.send(Puback(packet_id=4), Puback(packet_id=2))  # not in order
        client.ping()
        with SocketClient(cluster["c"].port, "s", clean_start=False) as moved:  # while the other is connected
            assert present(moved)
            assert client.receive() is None
            assert messages(moved, 2) == [(b"3", 3, True), (b"5", 5, True)]
            moved.send(Puback(packet_id=3), Puback(packet_id=5))
            moved.ping()
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        publish(cluster, "a", b"6")
        assert messages(client, 1) == [(b"6", 6, False)]
        assert client.ping() == []


def test_qos_2_goes_from_node_to_node_at_each_step(cluster: ClusterProcess) -> None:
    """Both handshakes; each step is at another node than the step before (G3)."""
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        client.subscribe(("t", 2))
    with SocketClient(cluster["a"].port, "p", clean_start=False) as publisher:
        publisher.send(Publish("t", b"x", qos=2, packet_id=7))
        assert isinstance(publisher.receive(), Pubrec)
    with SocketClient(cluster["b"].port, "p", clean_start=False) as publisher:
        publisher.send(Publish("t", b"x", qos=2, packet_id=7, dup=True))
        assert isinstance(publisher.receive(), Pubrec)
    with SocketClient(cluster["c"].port, "p", clean_start=False) as publisher:
        publisher.send(Pubrel(packet_id=7))
        assert isinstance(publisher.receive(), Pubcomp)
    with SocketClient(cluster["a"].port, "p", clean_start=False) as publisher:
        publisher.send(Pubrel(packet_id=7))
        assert isinstance(publisher.receive(), Pubcomp)
    with SocketClient(cluster["b"].port, "s", clean_start=False) as client:
        assert messages(client, 1) == [(b"x", 1, False)]
    with SocketClient(cluster["c"].port, "s", clean_start=False) as client:
        assert messages(client, 1) == [(b"x", 1, True)]
        client.send(Pubrec(packet_id=1))
        assert isinstance(client.receive(), Pubrel)
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        assert isinstance(client.receive(), Pubrel)
        client.send(Pubcomp(packet_id=1))
        assert client.ping() == []
    with SocketClient(cluster["b"].port, "s", clean_start=False) as client:
        assert client.ping() == []


def test_a_long_queue_is_delivered_whole(cluster: ClusterProcess) -> None:
    """A5: not the first thousand of it only."""
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        client.subscribe(("t", 1))
    payloads = [b"%d" % number for number in range(900)]
    for start in range(4):
        publish(cluster, "abc"[start % 3], *(b"%d/%s" % (start, payload) for payload in payloads))
    with SocketClient(cluster["b"].port, "s", clean_start=False) as client:
        for number in range(4 * len(payloads)):
            ((payload, packet_id, dup),) = messages(client, 1)
            assert (payload, packet_id, dup) == (b"%d/%d" % divmod(number, len(payloads)), number + 1, False)
            client.send(Puback(packet_id=packet_id))


def test_session_present_tells_the_truth(cluster: ClusterProcess) -> None:
    """I8, at whichever node."""
    exists = False
    for number in range(40):
        clean = number % 5 == 4
        with SocketClient(cluster["abc"[number % 3]].port, "s", clean_start=clean) as client:
            assert present(client) is (exists and not clean)
        exists = not clean


# ---- take-over ----


@pytest.mark.parametrize("clean", [True, False])
def test_two_connects_at_once_at_two_nodes(cluster: ClusterProcess, clean: bool) -> None:
    """F20, A10: one connection is left, whatever the order; and it gets the messages."""
    with SocketClient(cluster["c"].port, "watcher", clean_start=False) as watcher:
        watcher.subscribe(("will", 2))
        for number in range(30):
            client_id = f"twin {number}"
            clients: dict[str, SocketClient] = {}

            def connect(name: str, client_id: str = client_id, clients: dict[str, SocketClient] = clients) -> None:
                clients[name] = SocketClient(cluster[name].port, None)
                clients[name].send(connect_packet(client_id, clean))

            threads = [threading.Thread(target=connect, args=(name,)) for name in ("ab" if number % 2 else "ba")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            left = {name for name, client in clients.items() if stays(client)}
            assert len(left) == 1, number
            for client in clients.values():
                client.close()


@pytest.mark.one_shard
def test_a_session_ends_while_its_node_has_no_link(start_cluster: StartCluster) -> None:
    """Another node has taken it over with Clean Start: its first node has it no more when the link is back."""
    cluster = start_cluster({"http.listen": "127.0.0.1:0", "cluster.lease": "20s"}, nodes="ab", proxies=True)
    api = HttpClient(cluster["a"])
    with (
        SocketClient(cluster["a"].port, "s", clean_start=False) as client,
        SocketClient(cluster["b"].port, None) as next_one,
    ):
        client.subscribe(("t", 1), ("$share/g/t", 1))
        assert len(api.get("/subscriptions")["items"]) == 2
        cluster["a"].proxy.partition()
        cluster["a"].wait_for_log("Redis is away: messages for persistent sessions and other nodes wait")
        next_one.send(connect_packet("s", True))
        with cluster.redis.client() as redis:
            until(lambda: stored_session(redis, "s").waits, "it waits for the release")
        cluster["a"].proxy.resume()
        assert isinstance(next_one.receive(), Connack)
        assert client.receive() is None
        until(lambda: not api.get("/subscriptions")["items"])


def connect_packet(client_id: str, clean: bool) -> bytes:
    return encode(Connect(client_id=client_id, clean_start=clean, keep_alive=0, protocol_level=4), 4)


def stays(client: SocketClient) -> bool:
    """Whether a connection is still there once everything about it has been decided."""
    try:
        while client.receive(timeout=0.3) is not None:
            pass
    except TimeoutError:
        return True
    return False


def test_a_pair_that_fights_for_a_client_id(cluster: ClusterProcess) -> None:
    """F20: each reconnects as soon as it has lost; the fight is slowed down, and ends when one gives up."""
    ends: list[float] = []
    stop = threading.Event()

    def fight(name: str) -> None:
        while not stop.is_set():
            with SocketClient(cluster[name].port, None) as client:
                client.send(connect_packet("fighter", False))
                try:
                    while client.receive() is not None:
                        pass
                except TimeoutError:
                    continue
                ends.append(time.monotonic())

    fighters = [threading.Thread(target=fight, args=(name,), daemon=True) for name in "ab"]
    for fighter in fighters:
        fighter.start()
    until(lambda: len(ends) > 8)
    began, before = time.monotonic(), len(ends)
    time.sleep(3)  # a rate is measured
    assert (len(ends) - before) / (time.monotonic() - began) < 15
    stop.set()
    with SocketClient(cluster["c"].port, None) as last:
        last.send(connect_packet("fighter", False))
        packet = last.receive()
        assert packet is not None
        for fighter in fighters:
            fighter.join(25)


def test_take_over_again_and_again_under_load_delivers_once(cluster: ClusterProcess) -> None:
    """G5: a QoS 2 message is taken once however often its receiver moves; A10."""
    count = 400
    with SocketClient(cluster["a"].port, "s", clean_start=False) as client:
        client.subscribe(("t", 2))
    publishing = threading.Thread(
        target=publish, args=(cluster, "b", *(b"%d" % n for n in range(count))), kwargs={"qos": 2}, daemon=True
    )
    publishing.start()
    taken: list[int] = []
    unreleased: set[int] = set()
    moves = 0
    while len(taken) < count or unreleased:
        moves += 1
        with SocketClient(cluster["abc"[moves % 3]].port, "s", clean_start=False) as client:
            assert present(client)
            for _ in range(7 + moves % 50):
                try:
                    packet = client.receive(timeout=0.5)
                except TimeoutError:
                    break
                if isinstance(packet, Publish):
                    if packet.packet_id not in unreleased:
                        taken.append(int(packet.payload))
                        unreleased.add(packet.packet_id)
                    client.send(Pubrec(packet_id=packet.packet_id))
                elif isinstance(packet, Pubrel):
                    unreleased.discard(packet.packet_id)
                    client.send(Pubcomp(packet_id=packet.packet_id))
    publishing.join()
    assert taken == list(range(count))
    assert moves > 5


# ---- nothing is left behind ----


@pytest.mark.one_shard
def test_nothing_is_left_in_redis(cluster: ClusterProcess) -> None:
    """A2, A4, A12, I5, I11: after clients of all kinds have come and gone, Redis holds what it held before."""

    def round_of_clients(number: int) -> None:
        names = "abc"
        for client in range(12):
            here, there = names[client % 3], names[(client + number) % 3]
            client_id = f"{number}/{client}"
            with SocketClient(
                cluster[here].port,
                client_id,
                clean_start=client % 2 == 0,
                will_topic="w",
                will_payload=b"x",
                will_qos=1,
            ) as one:
                filters = [("t/#", client % 3), ("w", 1), (f"only/{client_id}", 1)]
                one.send(Subscribe(packet_id=1, topic_filters=filters))  # the will of the last may come before SUBACK
                one.send(Publish("t/x", b"unreleased", qos=2, packet_id=9))
                one.send(Publish("kept", b"x", qos=1, packet_id=10, retain=True))
                one.ping()
            publish(cluster, there, b"a", b"b", b"c", topic="t/y")
        for client in range(12):
            with SocketClient(cluster[names[number % 3]].port, f"{number}/{client}", clean_start=True) as one:
                assert one.ping() == []
        publish(cluster, "a", b"", topic="kept")
        with SocketClient(cluster["a"].port, "cleaner") as one:
            one.send(Publish("kept", b"", qos=1, packet_id=1, retain=True))
            assert isinstance(one.receive(), Puback)

    passing = ("mq:log:", "mq:owned:", "mq:routes:")  # routes linger for two minutes

    def kept() -> dict[str, object]:
        with cluster.redis.client() as client:
            return {
                "keys": [key for key in cluster.redis.key_names() if not key.startswith(passing)],
                "owned": sum(client.scard(key) for key in client.scan_iter("mq:owned:*")),
                "wills": sum(client.hlen(key) for key in client.scan_iter("mq:wills:*")),
                "retained": client.hlen("mq:retained"),
                "sessions": client.scard("mq:sessions"),
            }

    round_of_clients(0)
    before = until(lambda: (found := kept())["owned"] == 0 and found)
    for number in range(1, 6):
        round_of_clients(number)
    until(lambda: kept()["owned"] == 0)
    after = kept()
    assert after == before
    assert after["wills"] == after["retained"] == after["sessions"] == 0
    assert not [
        key for key in cluster.redis.key_names() if key.startswith(("mq:s:", "mq:q:", "mq:st:", "mq:in:", "mq:subs:"))
    ]


def test_a_session_that_expires_leaves_nothing(start_cluster: StartCluster) -> None:
    """I5: whichever node it was at last."""
    cluster = start_cluster({"mqtt.session_expiry": "1s"})
    for name in "abc":
        with SocketClient(cluster[name].port, f"s{name}", clean_start=False) as client:
            client.subscribe(("t", 1))
            client.send(Publish("t", b"x", qos=2, packet_id=1))
    publish(cluster, "a", b"x")
    with SocketClient(cluster["a"].port, "sa", clean_start=False) as stays_on:
        until(lambda: cluster.redis.client().scard("mq:sessions") == 1)
        assert present(stays_on)
        keys = [key for key in cluster.redis.key_names() if key.startswith(("mq:s:", "mq:q:", "mq:subs:", "mq:in:"))]
        assert {key.rpartition(":")[2] for key in keys} == {"sa"}
        publish(cluster, "b", b"y")
        assert [payload for payload, _, _ in messages(stays_on, 2)] == [b"x", b"y"]


@pytest.mark.parametrize("other", ["a", "b"])
def test_packets_behind_connect_are_handled_before_a_take_over(cluster: ClusterProcess, other: str) -> None:
    """Its DISCONNECT discards the will; an acknowledgement of the last packets may be missing."""
    watcher = SocketClient(cluster["c"].port, "watcher")
    watcher.subscribe(("#", 1))
    redis = cluster.redis.client()
    for number in range(20):
        client_id, topic = f"x{number}", f"s{number}"
        connect = Connect(client_id, clean_start=False, keep_alive=0, will_topic="will", will_payload=b"gone")
        first = SocketClient(cluster["a"].port)
        sent = [connect, Subscribe(1, [(topic, 1)]), Publish("t", b"first", qos=1, packet_id=2), Disconnect()]
        first.socket.sendall(b"".join(encode(packet, 4) for packet in sent))
        until(
            partial(redis.exists, f"{cluster.prefix_of(client_id)}s:{client_id}")
        )  # its CONNECT is the earlier one for the cluster
        with SocketClient(cluster[other].port, client_id, clean_start=False) as second:
            assert isinstance(first.receive(), Connack)
            while first.receive() is not None:
                pass
            second.send(Publish(topic, b"mine"))
            assert messages(second, 1)[0][0] == b"mine"
            assert sorted(payload for payload, *_ in messages(watcher, 2)) == [b"first", b"mine"]
        first.close()
    watcher.close()


def test_a_client_with_many_filters_leaves_and_is_back_at_once(cluster: ClusterProcess) -> None:
    """The routes of its clean session are withdrawn in slices: routes that its next session already has stay."""
    names = [f"many/{number}" for number in range(3000)]
    redis = cluster.redis.client()

    def routes() -> int:
        return int(sum(redis.hlen(key) for key in redis.scan_iter("mq:*routes:*")))

    with SocketClient(cluster["a"].port, "many") as client:
        client.subscribe(*((name, 0) for name in names))
        assert routes() == 3000
        client.send(Disconnect())
        with SocketClient(cluster["a"].port, "many") as again:
            again.subscribe(*((name, 0) for name in names[::100]))
            publish(cluster, "b", *(b"%d" % number for number in range(5)), topic=names[100])
            assert [payload for payload, _, _ in messages(again, 5)] == [b"%d" % number for number in range(5)]
            until(lambda: routes() == 30)
            publish(cluster, "b", b"end", topic=names[2900])
            assert messages(again, 1)[0][0] == b"end"
            again.send(Disconnect())
    until(lambda: routes() == 0)
