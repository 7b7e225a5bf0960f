"""A cluster with three shards, each on a Redis of its own: its clients notice nothing of them. G1, G2, G4 to G7."""

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from flockmq.broker.config.schema import ClusterConfig
from flockmq.cluster.redis.shard_addresses import addresses_of
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.redis_cluster import RedisCluster
from tests.harness.redis_process import RedisProcess, several, urls
from tests.harness.socket_client import SocketClient

SHARDS = 3
# Two clients of each shard.
NAMES = [next(f"s{i}" for i in range(10 * n, 10**6) if shard_of(b"s%d" % i, SHARDS) == n % SHARDS) for n in range(6)]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[RedisProcess]]:
    """Three empty Redis."""
    with several(tmp_path, SHARDS, "everysec") as servers:
        yield servers


@pytest.fixture
def cluster(three: list[RedisProcess], start_cluster: StartCluster) -> ClusterProcess:
    """Three nodes."""
    return start_cluster({"cluster.lease": 2}, redis=GivenRedis(three[0], urls(three)))


def publish(
    client: SocketClient, topic: str, payload: bytes, qos: int, packet_id: int, *, retain: bool = False
) -> None:
    """Publish, and go through with the handshake."""
    client.send(Publish(topic, payload, qos, retain, packet_id=packet_id if qos else 0))
    if qos == 1:
        assert client.receive() == Puback(packet_id=packet_id)
    elif qos == 2:
        assert client.receive() == Pubrec(packet_id=packet_id)
        client.send(Pubrel(packet_id=packet_id))
        assert client.receive() == Pubcomp(packet_id=packet_id)


def take(client: SocketClient) -> Publish:
    """The next message, acknowledged; handshakes that come before it go on."""
    while isinstance(packet := client.receive(), Pubrel):
        client.send(Pubcomp(packet_id=packet.packet_id))
    assert isinstance(packet, Publish), packet
    if packet.qos == 1:
        client.send(Puback(packet_id=packet.packet_id))
    elif packet.qos == 2:
        client.send(Pubrec(packet_id=packet.packet_id))
    return packet


def test_every_client_gets_each_message_once_and_in_order(cluster: ClusterProcess) -> None:
    """Clean and persistent sessions, connected and not, of all shards and nodes; publishers of all shards."""
    with ExitStack() as stack:
        listeners = []
        for number, name in enumerate(NAMES):
            client = SocketClient(cluster.nodes[number % 3].port, name, clean_start=number < 2)
            listeners.append(stack.enter_context(client))
            assert client.subscribe(("t/#", 2)) == [2]
        absent = listeners[3:]
        for client in absent:
            client.close()
        sent = []
        for publisher in NAMES[:3]:
            client = SocketClient(cluster.nodes[int(publisher[-1]) % 3].port, f"p{publisher}", clean_start=False)
            with client:
                for number in range(1, 13):
                    payload = f"{publisher} {number}".encode()
                    publish(client, f"t/{publisher}", payload, number % 3, number)
                    sent.append((f"t/{publisher}", payload, number % 3))
        for client in listeners[:3]:
            got = [(each.topic_name, each.payload, each.qos) for each in (take(client) for _ in sent)]
            for qos in range(3):  # messages of QoS 0 go another way
                assert [each for each in got if each[2] == qos] == [each for each in sent if each[2] == qos]
        kept = [each for each in sent if each[2]]
        for number, name in enumerate(NAMES[3:]):
            back = stack.enter_context(SocketClient(cluster.nodes[number].port, name, clean_start=False))
            got = [(each.topic_name, each.payload, each.qos) for each in (take(back) for _ in kept)]
            for qos in (1, 2):
                assert [each for each in got if each[2] == qos] == [each for each in kept if each[2] == qos]


def test_retained_messages_of_all_shards_are_there_after_suback(cluster: ClusterProcess) -> None:
    """Each is published just before at one node, and read at another (X3)."""
    topics = [f"r/{number}" for number in range(20)]
    assert {shard_of(topic.encode(), SHARDS) for topic in topics} == {0, 1, 2}
    with SocketClient(cluster["a"].port, "p", clean_start=False) as publisher:
        for number, topic in enumerate(topics, 1):
            publish(publisher, topic, b"kept", 1 + number % 2, number, retain=True)
            with SocketClient(cluster["b"].port, f"reader {number}") as reader:
                reader.subscribe((topic, 0))
                assert reader.receive() == Publish(topic, b"kept", 0, True)


def test_a_client_that_moves_has_all_that_it_has_published_before(cluster: ClusterProcess) -> None:
    """Its session is released when all shards have its messages (X2)."""
    with SocketClient(cluster["c"].port, NAMES[4], clean_start=False) as listener:
        listener.subscribe(("t", 1))
        for number in range(30):
            with SocketClient(cluster.nodes[number % 3].port, NAMES[0], clean_start=False) as client:
                client.send(Publish("t", b"%d" % number, 1, packet_id=1))
                if number % 2:
                    assert client.receive() == Puback(packet_id=1)
        got = [int(take(listener).payload) for _ in range(15)]
        while got[-1] < 29:
            got.append(int(take(listener).payload))
        assert got == sorted(got)
        assert set(range(1, 30, 2)) <= set(got)


def test_a_group_gives_each_message_to_one_member_whatever_their_shards(cluster: ClusterProcess) -> None:
    with ExitStack() as stack:
        members = []
        for number, name in enumerate(NAMES):
            client = SocketClient(cluster.nodes[number % 3].port, name, clean_start=number % 2 == 0)
            members.append(stack.enter_context(client))
            assert client.subscribe(("$share/g/t", 2)) == [2]
        publisher = stack.enter_context(SocketClient(cluster["a"].port, "p"))
        for number in range(1, 61):
            publish(publisher, "t", b"%d" % number, 1, number)
        got: list[int] = []

        def all_are_there() -> bool:
            for member in members:
                while True:
                    try:
                        packet = member.receive(timeout=0.02)
                    except TimeoutError:
                        break
                    assert isinstance(packet, Publish)
                    member.send(Puback(packet_id=packet.packet_id))
                    got.append(int(packet.payload))
            return len(got) >= 60

        until(all_are_there, "all messages have arrived")
        assert sorted(got) == list(range(1, 61))


@pytest.mark.parametrize("qos", [1, 2])
def test_the_will_of_a_killed_node_reaches_all_shards_once(cluster: ClusterProcess, qos: int) -> None:
    with ExitStack() as stack:
        listeners = []
        for name in NAMES:
            client = stack.enter_context(SocketClient(cluster["b"].port, name, clean_start=False))
            client.subscribe(("will", 2))
            listeners.append(client)
        will = SimpleNamespace(will_topic="will", will_payload=b"gone", will_qos=qos)
        stack.enter_context(SocketClient(cluster["a"].port, "mortal", **vars(will)))
        cluster["a"].signal(signal.SIGKILL)
        for client in listeners:
            packet = take(client)
            assert (packet.payload, packet.qos) == (b"gone", qos)
        with SocketClient(cluster["c"].port, "after") as last:
            publish(last, "will", b"last", 1, 1)
        for client in listeners:
            assert take(client).payload == b"last"


def test_qos_2_takes_effect_once_when_a_node_is_killed_between_its_two_steps(cluster: ClusterProcess) -> None:
    """The client sends PUBREL again to another node, and the shards that have the message skip it (X4)."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(SocketClient(cluster["c"].port, name, clean_start=False)) for name in NAMES]
        for client in listeners:
            client.subscribe(("t", 2))
        for number in range(6):
            here, there = cluster.nodes[number % 2], cluster.nodes[1 - number % 2]
            with SocketClient(here.port, "p", clean_start=False) as client:
                client.send(Publish("t", b"%d" % number, 2, packet_id=1))
                assert client.receive() == Pubrec(packet_id=1)
                client.send(Pubrel(packet_id=1))
                here.kill()
            with SocketClient(there.port, "p", clean_start=False) as client:
                client.send(Pubrel(packet_id=1))
                assert client.receive() == Pubcomp(packet_id=1)
            cluster.start()
        for client in listeners:
            assert [take(client).payload for _ in range(6)] == [b"%d" % number for number in range(6)]
        with SocketClient(cluster["a"].port, "after") as last:
            publish(last, "t", b"last", 1, 1)
        for client in listeners:
            assert take(client).payload == b"last"


def test_a_node_whose_shards_are_others_does_not_join(cluster: ClusterProcess, three: list[RedisProcess]) -> None:
    for servers in (three[::-1], three[:1], three[:2]):
        cluster.redis_url = urls(servers)
        node = cluster.add(f"wrong{len(cluster.nodes)}")
        node.spawn()
        assert node.process is not None
        assert node.wait() != 0
        assert re.search("it has shard [1-3] of 3, and the configuration says", node.log_text())
        cluster.nodes.remove(node)


def test_each_shard_has_its_keys_and_no_other(cluster: ClusterProcess, three: list[RedisProcess]) -> None:
    """A session, a retained message and a group are in the shard of their names; numbers are forgotten."""
    with SocketClient(cluster["a"].port, "p", clean_start=False) as publisher:
        for number, name in enumerate(NAMES, 1):
            with SocketClient(cluster["b"].port, name, clean_start=False) as client:
                client.subscribe((f"t/{name}", 2), ("all", 2))
            publish(publisher, f"t/{name}", b"kept", 1, number, retain=True)
        for number in range(20):
            publish(publisher, "all", b"%d" % number, 2, number + 100)
        for shard, server in enumerate(three):
            prefix = f"mq:p{shard}:" if shard else "mq:"
            mine = {name for name in NAMES if shard_of(name.encode(), SHARDS) == shard}
            with server.client() as client:
                sessions = {key.removeprefix(f"{prefix}s:") for key in client.keys(f"{prefix}s:*")}
                assert sessions - {"p"} == mine
                topics = {topic for topic in client.hkeys(f"{prefix}retained") if not topic.startswith("$")}
                assert topics == {f"t/{name}" for name in NAMES if shard_of(b"t/%b" % name.encode(), SHARDS) == shard}
                assert client.hlen(f"{prefix}once") <= 1  # of the last message: forgotten with the next block


def test_slots_of_a_redis_cluster(start_cluster: StartCluster, tmp_path: Path) -> None:
    """Each shard has a slot, with the rights that CLUSTER.md lists. One of them moves to another primary."""
    (tmp_path / "servers").mkdir()
    group = RedisCluster(tmp_path / "servers", "nothing", replicas=0)
    rights = [
        *("~{mq}*", "~{mq.*}*", "&{mq}:*", "&{mq.*}:*", "-@all", "+@read", "+@write", "+time", "+fcall", "+fcall_ro"),
        *("+function|list", "+function|load", "+spublish", "+ssubscribe", "+hello", "+ping", "+wait"),
        *("+cluster|slots", "+client|list", "+client|kill"),
    ]
    with ExitStack() as stack:
        stack.callback(group.stop)
        group.start()
        for server in group.servers:
            server.client().execute_command("ACL", "SETUSER", "nodes", "on", ">sesame", "resetchannels", *rights)
        url = group.url.replace("//", "//nodes:sesame@")
        cluster = start_cluster({"cluster.shards": SHARDS}, nodes="ab", redis=GivenRedis(group.owner, url))
        assert all(any(server.key_names()) for server in group.servers)
        clients = [stack.enter_context(SocketClient(cluster["a"].port, name, clean_start=False)) for name in NAMES]
        for client in clients:
            client.subscribe(("t", 1))
        publisher = stack.enter_context(SocketClient(cluster["b"].port, "publisher"))
        sent: list[bytes] = []

        def send(count: int = 20) -> None:
            for _ in range(count):
                sent.append(b"%d" % len(sent))
                publisher.send(Publish("t", sent[-1], 1, packet_id=len(sent)))

        send()
        group.slot = addresses_of(ClusterConfig(redis=url, shards=SHARDS))[1].keys.slot
        group.move_slot(group.other_primary(), send)
        send()
        for number in range(1, len(sent) + 1):
            assert publisher.receive() == Puback(packet_id=number)
        for client in clients:
            found: list[bytes] = []
            while len(found) < len(sent):
                packet = client.receive()
                assert isinstance(packet, Publish)
                client.send(Puback(packet_id=packet.packet_id))
                found += [packet.payload] * (packet.payload not in found)
            assert found == sent
        cluster.check()
