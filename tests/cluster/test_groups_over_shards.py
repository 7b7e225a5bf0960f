"""Shared subscriptions whose subscribers have sessions in other shards than the group. G13, G2, G3."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq._speedups.codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.cluster.test_shards import NAMES, SHARDS, publish
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.redis_process import RedisProcess, several, urls
from tests.harness.socket_client import SocketClient

GROUP = "$share/g/t/#"
HOME = shard_of(GROUP.encode(), SHARDS)
THERE = [name for name in NAMES if shard_of(name.encode(), SHARDS) == HOME]
ELSEWHERE = [name for name in NAMES if name not in THERE]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisProcess]]:
    """Three empty Redis."""
    with several(tmp_path_factory.mktemp("redis"), SHARDS, "everysec") as servers:
        yield servers


@pytest.fixture
def cluster(three: list[RedisProcess], start_cluster: StartCluster) -> ClusterProcess:
    """Three nodes; messages of absent subscribers go to others after a second."""
    for server in three:
        server.client().flushall()
    return start_cluster({"cluster.lease": 2, "shared.redispatch": 1}, redis=GivenRedis(three[0], urls(three)))


def member(stack: ExitStack, cluster: ClusterProcess, node: str, name: str, qos: int = 2) -> SocketClient:
    """A subscriber of the group with a persistent session."""
    client = stack.enter_context(SocketClient(cluster[node].port, name, clean_start=False))
    assert client.subscribe((GROUP, qos)) == [qos]
    return client


def publish_all(cluster: ClusterProcess, count: int, qos: int) -> None:
    """Publish the numbers from 1 on, and wait for their acknowledgements."""
    with SocketClient(cluster["c"].port, "publisher") as client:
        for number in range(1, count + 1):
            publish(client, "t/1", b"%d" % number, qos, number)


def seen(client: SocketClient) -> int:
    """The number of the next message, which is not acknowledged."""
    packet = client.receive()
    assert isinstance(packet, Publish)
    return int(packet.payload)


def answer(client: SocketClient, got: list[int]) -> None:
    """Take what arrives, and acknowledge it; a message of QoS 2 counts when it is completed."""
    with suppress(TimeoutError):
        while True:
            packet = client.receive(timeout=0.03)
            if isinstance(packet, Publish) and packet.qos == 1:
                got.append(int(packet.payload))
                client.send(Puback(packet_id=packet.packet_id))
            elif isinstance(packet, Publish):
                got.append(int(packet.payload))
                client.send(Pubrec(packet_id=packet.packet_id))
            elif isinstance(packet, Pubrel):
                client.send(Pubcomp(packet_id=packet.packet_id))


def collect(clients: list[SocketClient], count: int) -> list[int]:
    """Answer until so many different messages have come; returns all."""
    got: list[int] = []

    def all_have_come() -> bool:
        for client in clients:
            answer(client, got)
        return len(set(got)) >= count

    until(all_have_come, "all messages have arrived")
    for client in clients:
        answer(client, got)
    return got


@pytest.mark.parametrize("qos", [1, 2])
def test_persistent_subscribers_of_all_shards_share_the_messages(cluster: ClusterProcess, qos: int) -> None:
    with ExitStack() as stack:
        members = [member(stack, cluster, "ab"[n % 2], name) for n, name in enumerate(NAMES)]
        publish_all(cluster, 60, qos)
        assert sorted(collect(members, 60)) == [*range(1, 61)]


def test_messages_of_a_subscriber_that_goes_return_to_the_group(cluster: ClusterProcess) -> None:
    """Those that were not sent at once, those of QoS 1 after `shared.redispatch`: no acknowledged message is lost."""
    with ExitStack() as stack:
        gone = [member(stack, cluster, "a", name, 1) for name in ELSEWHERE]
        publish_all(cluster, 60, 1)
        first = [seen(client) for client in gone]
        for client in gone:
            client.close()
        got = collect([member(stack, cluster, "b", THERE[0], 1)], 60)
        assert sorted(got) == [*range(1, 61)]
        assert set(first) <= set(got)


@pytest.mark.parametrize("end", ["clean", "killed"])
def test_messages_of_a_session_that_ends_return_to_the_group(cluster: ClusterProcess, end: str) -> None:
    """Also if the node of the session is killed first. [5: MQTT-4.8.2-5]"""
    with ExitStack() as stack:
        ends = member(stack, cluster, "a", ELSEWHERE[0], 1)
        publish_all(cluster, 20, 1)
        seen(ends)
        last = member(stack, cluster, "b", ELSEWHERE[1], 1)  # a group without subscribers ends
        if end == "killed":
            cluster["a"].signal(signal.SIGKILL)
        ends.close()
        with SocketClient(cluster["b"].port, ELSEWHERE[0], clean_start=True):
            pass
        assert {*collect([last], 20)} == {*range(1, 21)}


def test_qos_2_arrives_once_although_the_node_is_killed_when_its_subscribers_get_it(cluster: ClusterProcess) -> None:
    """The assignments of a dead node are in doubt until the shards of its subscribers have replied."""
    for _ in range(3):
        with ExitStack() as stack:
            first = [member(stack, cluster, "a", name) for name in ELSEWHERE]
            helper = member(stack, cluster, "b", THERE[0])
            publish_all(cluster, 40, 2)
            for client in first:
                seen(client)
            cluster["a"].kill()
            for client in first:
                client.close()
            port = cluster["b"].port
            clients = [stack.enter_context(SocketClient(port, name, clean_start=False)) for name in ELSEWHERE]
            clients.append(helper)
            got = collect(clients, 40)
            assert sorted(got) == [*range(1, 41)]
        cluster.start()
