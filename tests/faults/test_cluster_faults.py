"""Whatever breaks between and beneath the nodes while clients publish: nothing acknowledged is lost (I1-I3, I6-I8).

Each fault is a function of a running cluster; clients act until it returns, then all must come to a good end.
"""

import signal
from collections.abc import Callable

import pytest

from tests.conftest import StartCluster
from tests.faults.cluster_load import CLUSTER_SETTINGS, LEASE, ClusterLoad, wait
from tests.harness.cluster_process import ClusterProcess, new_seed

Fault = Callable[[ClusterProcess], None]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """A row of FAULTS."""
    FAULTS[function.__name__.replace("_", " ")] = function
    return function


# ---- nodes ----


@fault
def a_node_is_killed_and_comes_back(cluster: ClusterProcess) -> None:
    """F1."""
    cluster["b"].kill()
    wait(2 * LEASE)
    cluster["b"].start()


@fault
def two_of_three_nodes_are_killed(cluster: ClusterProcess) -> None:
    cluster["a"].kill()
    cluster["c"].kill()
    wait(2 * LEASE)
    cluster.start()


@fault
def all_nodes_are_killed(cluster: ClusterProcess) -> None:
    for name in "abc":
        cluster[name].kill()
    cluster.start()


@fault
def a_killed_node_is_back_before_its_lease_ends(cluster: ClusterProcess) -> None:
    for _ in range(3):
        cluster["a"].kill()
        cluster["a"].start()


@fault
def a_node_stands_still_for_longer_than_its_lease(cluster: ClusterProcess) -> None:
    """F21: it is dead to the others; when it wakes up it must do nothing that it was about to do."""
    for name in "ab":
        cluster[name].signal(signal.SIGSTOP)
        wait(2 * LEASE)
        cluster[name].signal(signal.SIGCONT)
        wait(0.5)


@fault
def a_node_stands_still_for_less_than_its_lease(cluster: ClusterProcess) -> None:
    for name in "abc":
        cluster[name].signal(signal.SIGSTOP)
        wait(LEASE / 2)
        cluster[name].signal(signal.SIGCONT)


@fault
def nodes_are_restarted_one_after_the_other(cluster: ClusterProcess) -> None:
    """F22: SIGTERM."""
    for name in "abc":
        assert cluster[name].stop() == 0
        cluster[name].start()


@fault
def nodes_come_and_go(cluster: ClusterProcess) -> None:
    for name in "de":
        late = cluster.add(name).start()
        wait(0.5)
        assert late.stop() == 0
        cluster.nodes.remove(late)


# ---- Redis ----


@fault
def redis_is_restarted(cluster: ClusterProcess) -> None:
    """F3; its append-only file is synced always."""
    for _ in range(3):
        cluster.redis.restart()
        wait(0.5)


@fault
def redis_is_killed(cluster: ClusterProcess) -> None:
    for _ in range(3):
        cluster.redis.kill()
        wait(0.3)
        cluster.redis.start()
        wait(0.5)


@fault
def redis_is_away_for_longer_than_the_lease(cluster: ClusterProcess) -> None:
    cluster.redis.kill()
    wait(3 * LEASE)
    cluster.redis.start()


@fault
def redis_stands_still_for_a_moment(cluster: ClusterProcess) -> None:
    """F5."""
    for _ in range(3):
        cluster.redis.freeze()
        wait(0.5)
        cluster.redis.thaw()
        wait(0.3)


@fault
def redis_stands_still_for_longer_than_the_lease(cluster: ClusterProcess) -> None:
    """F5: a fault of Redis, for which nobody may take another node for dead."""
    cluster.redis.freeze()
    wait(3 * LEASE)
    cluster.redis.thaw()
    wait(1)


@fault
def redis_ends_connections(cluster: ClusterProcess) -> None:
    """F9, A8: by CLIENT KILL, again and again; messages of the gaps are read from streams and queues."""
    for _ in range(15):
        cluster.redis.cut("pubsub")
        cluster.redis.cut("normal")
        wait(0.15)


@fault
def output_buffers_of_redis_overflow(cluster: ClusterProcess) -> None:
    """F9, A8: Redis ends the connection of a subscriber that has not read so much."""
    cluster.redis.set(client_output_buffer_limit="pubsub 2kb 1kb 1")
    wait(2)
    cluster.redis.set(client_output_buffer_limit="pubsub 32mb 8mb 60")
    wait(1)


@fault
def redis_has_no_memory_left(cluster: ClusterProcess) -> None:
    """F12: calls that free memory pass, the others wait, and go on by themselves."""
    for _ in range(3):
        cluster.redis.set(maxmemory=1)
        wait(0.7)
        cluster.redis.set(maxmemory=0)
        wait(0.4)


@fault
def the_functions_are_gone(cluster: ClusterProcess) -> None:
    """FUNCTION FLUSH by somebody else, or a failover to a replica without them."""
    with cluster.redis.client() as client:
        for _ in range(3):
            client.function_flush("SYNC")
            wait(0.7)


# ---- the network ----


@fault
def redis_is_far_away(cluster: ClusterProcess) -> None:
    """0.2 s for each round trip."""
    for node in cluster.nodes:
        node.proxy.slow(0.1)
    wait(3)
    for node in cluster.nodes:
        node.proxy.resume()


@fault
def connections_to_redis_are_cut(cluster: ClusterProcess) -> None:
    for number in range(15):
        cluster["abc"[number % 3]].proxy.cut()
        wait(0.1)


@fault
def a_node_is_cut_off(cluster: ClusterProcess) -> None:
    """F7: for longer than its lease; the network reports it."""
    cluster["a"].proxy.partition()
    wait(3 * LEASE)
    cluster["a"].proxy.resume()
    wait(1)


@fault
def a_node_is_cut_off_silently(cluster: ClusterProcess) -> None:
    """F7: no packet arrives in either direction, and no error is reported."""
    cluster["a"].proxy.stall()
    wait(3 * LEASE)
    cluster["a"].proxy.resume()
    wait(1)


@fault
def all_nodes_are_cut_off(cluster: ClusterProcess) -> None:
    for node in cluster.nodes:
        node.proxy.partition()
    wait(3 * LEASE)
    for node in cluster.nodes:
        node.proxy.resume()


@pytest.fixture
def load(start_cluster: StartCluster) -> ClusterLoad:
    cluster = start_cluster(CLUSTER_SETTINGS, running=False, redis="always", proxies=True)
    return ClusterLoad(cluster, new_seed())


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_acknowledged_is_lost(load: ClusterLoad, name: str) -> None:
    load.start()
    load.run(0.5)
    load.during(lambda: FAULTS[name](load.cluster))
    load.run(0.5)
    load.finish()
    load.finish_twins()
    print(f"{load.count} messages, {len(load.history.events)} events")
