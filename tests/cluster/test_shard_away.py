"""One of three primaries is away: its clients wait, and all others notice nothing. G1, G2, G8, X2."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq._speedups.codec.packets import (
    Connack,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from tests.cluster.test_shards import SHARDS, publish, take
from tests.conftest import StartCluster
from tests.harness.broker_process import BrokerProcess, until
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.redis_process import RedisProcess, several, urls
from tests.harness.socket_client import SocketClient

LEASE = 2
SERVER_UNAVAILABLE = 3  # in CONNACK at level 4
PROMPTLY = 5.0  # seconds in which others are served, while the shard is away for longer


def named(kind: str, shard: int) -> str:
    """A client id of a shard."""
    names = (f"{kind}{number}" for number in range(10_000))
    return next(name for name in names if shard_of(name.encode(), SHARDS) == shard)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[RedisProcess]]:
    """Three empty Redis."""
    with several(tmp_path, SHARDS, "always") as servers:
        yield servers


@pytest.fixture
def cluster(three: list[RedisProcess], start_cluster: StartCluster) -> ClusterProcess:
    """Three nodes."""
    return start_cluster({"cluster.lease": LEASE}, redis=GivenRedis(three[0], urls(three)))


def homes(server: RedisProcess) -> dict[str, int]:
    """The shards that have the routes of the nodes, by their names."""
    with server.client() as client:
        return {name.partition("-")[0]: shard_of(name.encode(), SHARDS) for name in client.hkeys("mq:nodes")}


def freeze(server: RedisProcess) -> Callable[[], object]:
    server.freeze()
    return server.thaw


def kill(server: RedisProcess) -> Callable[[], object]:
    server.kill()
    return server.start


@pytest.mark.parametrize("take_away", [freeze, kill])
def test_clients_of_other_shards_notice_nothing(
    cluster: ClusterProcess, three: list[RedisProcess], take_away: Callable[[RedisProcess], Callable[[], object]]
) -> None:
    home = homes(three[0])
    away = max(range(SHARDS), key=lambda shard: (list(home.values()).count(shard) < 3, shard))
    here = (away + 1) % SHARDS
    node, other = cluster.nodes[:2]
    visited = next(each for each in cluster.nodes if home[each.name] != away)
    with ExitStack() as stack:

        def connect(place: BrokerProcess, name: str) -> SocketClient:
            return stack.enter_context(SocketClient(place.port, name, clean_start=False))

        # QoS 0 goes over the home of the receiver's node.
        far, near = connect(other, named("far", away)), connect(visited, named("near", here))
        far.subscribe(("far", 2), packet_id=1)
        near.subscribe(("near", 2), packet_id=1)
        stuck, free = connect(node, named("stuck", here)), connect(node, named("free", here))
        bring_back = take_away(three[away])
        try:
            stuck.send(Publish("far", b"waits", 1, packet_id=1), Publish("nobody", b"behind", 1, packet_id=2))
            for number in range(1, 40):
                publish(free, "near", b"%d" % number, number % 3, number)
                assert take(near).payload == b"%d" % number
            with pytest.raises(TimeoutError):  # its second answer waits behind its first
                stuck.receive(timeout=0.3)
            began = time.monotonic()
            with SocketClient(visited.port, named("new", here), clean_start=False) as new:
                assert new.subscribe(("new", 1)) == [1]
            with SocketClient(visited.port, named("new", here), clean_start=False) as back:
                assert back.connack is not None and back.connack.session_present
            assert time.monotonic() - began < PROMPTLY

            def is_refused() -> bool:
                with SocketClient(node.port, named("late", away), clean_start=False) as late:
                    assert isinstance(late.connack, Connack)
                    return late.connack.reason_code == SERVER_UNAVAILABLE

            until(is_refused, "the nodes have noticed that the shard is away")
            publish(free, "near", b"later", 2, 50)
            assert take(near).payload == b"later"
            with pytest.raises(TimeoutError):
                stuck.receive(timeout=0.1)
        finally:
            bring_back()
        assert [stuck.receive(), stuck.receive()] == [Puback(packet_id=1), Puback(packet_id=2)]
        publish(stuck, "far", b"last", 1, 3)
        far.close()  # or its node has closed it, so that it connects to another one

        def is_back() -> SocketClient | None:
            client = connect(other, named("far", away))
            return client if client.connack is not None and client.connack.reason_code == 0 else None

        far = until(is_back, "the node has reached the shard again")
        assert [take(far).payload, take(far).payload] == [b"waits", b"last"]


def test_answers_come_in_their_order_whatever_shards_they_wait_for(
    cluster: ClusterProcess, three: list[RedisProcess]
) -> None:
    """[MQTT-4.6.0-2]: PUBACK and PUBREC, in the order of PUBLISH; PUBCOMP in the order of PUBREL."""
    rng = random.Random(5)
    with ExitStack() as stack:
        receivers = []
        for shard in range(SHARDS):
            client = stack.enter_context(SocketClient(cluster["b"].port, named("r", shard), clean_start=False))
            client.subscribe((f"t/{shard}", 2), ("all", 2))
            receivers.append(client)
        publishers = [
            stack.enter_context(SocketClient(cluster["a"].port, named("p", shard), clean_start=False))
            for shard in range(SHARDS)
        ]
        sent: list[list[Publish]] = [[] for _ in publishers]
        three[1].freeze()
        try:
            for number in range(1, 101):
                for packets, client in zip(sent, publishers, strict=True):
                    topic = rng.choice(("all", "t/0", "t/1", "t/2"))
                    packets.append(Publish(topic, b"%d" % number, rng.choice((1, 2)), packet_id=number))
                    client.send(packets[-1])
        finally:
            three[1].thaw()
        for packets, client in zip(sent, publishers, strict=True):
            answers = [client.receive() for _ in packets]
            assert answers == [(Puback if each.qos == 1 else Pubrec)(packet_id=each.packet_id) for each in packets]
        three[1].freeze()
        try:
            for packets, client in zip(sent, publishers, strict=True):
                client.send(*(Pubrel(packet_id=each.packet_id) for each in packets if each.qos == 2))
        finally:
            three[1].thaw()
        for packets, client in zip(sent, publishers, strict=True):
            released = [each for each in packets if each.qos == 2]
            assert [client.receive() for _ in released] == [Pubcomp(packet_id=each.packet_id) for each in released]
        wanted = sum((each.topic_name in ("all", "t/0")) for packets in sent for each in packets)
        got = [take(receivers[0]) for _ in range(wanted)]
        for qos in (1, 2):
            for topic in ("all", "t/0"):
                mine = [int(each.payload) for each in got if (each.topic_name, each.qos) == (topic, qos)]
                assert len(mine) == sum(each.topic_name == topic and each.qos == qos for p in sent for each in p)


def test_a_publisher_is_read_again_when_its_shard_is_back(cluster: ClusterProcess, three: list[RedisProcess]) -> None:
    """What waits for a shard that is away has a limit of its own: others are read all the while."""
    with ExitStack() as stack:
        far = stack.enter_context(SocketClient(cluster["b"].port, named("far", 1), clean_start=False))
        far.subscribe(("far", 1))
        near = stack.enter_context(SocketClient(cluster["b"].port, named("near", 2), clean_start=False))
        near.subscribe(("near", 1))
        flood = stack.enter_context(SocketClient(cluster["a"].port, named("flood", 2)))
        free = stack.enter_context(SocketClient(cluster["a"].port, named("free", 2)))
        three[1].freeze()
        try:
            count = 0
            flood.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                while count < 65000:
                    count += 1
                    flood.send(Publish("far", bytes(60_000), 1, packet_id=count))
            for number in range(1, 20):
                publish(free, "near", b"%d" % number, 1, number)
                assert take(near).payload == b"%d" % number
        finally:
            three[1].thaw()
        flood.socket.settimeout(20)
        assert flood.receive() == Puback(packet_id=1)
        assert count < 4000


def test_a_subscription_gets_what_is_retained_in_the_shard_when_it_is_back(
    cluster: ClusterProcess, three: list[RedisProcess]
) -> None:
    """A node had accepted the message before it knew the subscription, and could not store it yet."""
    home = homes(three[0])
    away = max(range(SHARDS), key=lambda shard: (list(home.values()).count(shard) < 3, shard))
    visited = next(each for each in cluster.nodes if home[each.name] != away)
    other = next(each for each in cluster.nodes if each is not visited)
    topic = named("kept/", away)
    with ExitStack() as stack:
        publisher = stack.enter_context(SocketClient(other.port, named("p", (away + 1) % SHARDS)))
        three[away].freeze()
        try:
            publisher.send(Publish(topic, b"kept", 1, retain=True, packet_id=1))
            publisher.send(Pingreq())
            assert publisher.receive() == Pingresp()  # it has been handled
            exact = stack.enter_context(SocketClient(visited.port, named("exact", (away + 1) % SHARDS)))
            assert exact.subscribe((topic, 1)) == [1]
            wild = stack.enter_context(SocketClient(visited.port, named("wild", (away + 1) % SHARDS)))
            assert wild.subscribe(("kept/#", 1)) == [1]
        finally:
            three[away].thaw()
        assert publisher.receive() == Puback(packet_id=1)
        for client in (exact, wild):
            packet = take(client)
            assert (packet.topic_name, packet.payload, packet.retain) == (topic, b"kept", True)
