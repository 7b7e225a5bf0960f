"""Shared subscriptions over nodes: how messages of QoS 0 are divided among members; order by key is refused."""

from _speedups.codec.packets import Publish, Suback, Subscribe
from tests.conftest import StartCluster
from tests.harness.broker_process import until
from tests.harness.socket_client import SocketClient
from tests.web.http_client import HttpClient

JOBS = "$share/workers/jobs"
MESSAGES = 10_000


def test_equal_members_over_three_nodes_get_equal_parts(start_cluster: StartCluster) -> None:
    cluster = start_cluster({})
    members = [SocketClient(cluster[name].port, f"m{number}") for number, name in enumerate("aaabbbcccc")]
    for member in members:
        member.send(Subscribe(1, [(JOBS, 0)]))
        assert isinstance(member.receive(), Suback)
    cluster.settle()
    counts = [0] * len(members)

    def received() -> int:
        for number, member in enumerate(members):
            counts[number] += sum(isinstance(packet, Publish) for packet in member.ping())
        return sum(counts)

    with SocketClient(cluster["a"].port, "p1") as first, SocketClient(cluster["c"].port, "p2") as second:
        for number in range(0, MESSAGES, 200):
            for publisher in (first, second):
                publisher.send(*(Publish("jobs", b"%d" % number) for _ in range(100)))
                publisher.ping()
            received()
    until(lambda: received() == MESSAGES)
    mean = MESSAGES / len(members)
    assert all(abs(count - mean) < 0.05 * mean for count in counts), counts


def test_order_by_key_is_refused(start_cluster: StartCluster) -> None:
    cluster = start_cluster({"http.listen": "127.0.0.1:0"})
    client = HttpClient(cluster["b"])
    reply = client.ask("PUT", "/group", {"strategy": "topic"}, group=JOBS)
    assert reply.status == 422
    assert "for one node" in str(reply.json)
    assert client.ask("PUT", "/group", {"strategy": "rotation"}, group=JOBS).status == 204
