"""Partitions by the kernel, in network namespaces: packets vanish, and no connection gets an error (F7, F8).

One bridge, in a separate namespace, where no firewall of this machine judges the packets; a namespace for Redis and one
for each node. Needs root.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flockmq.loadtest.prove.tcp_proxy import TcpProxy
from tests.faults.cluster_load import CLUSTER_SETTINGS, LEASE, ClusterLoad, wait
from tests.harness.cluster_process import ClusterNode, ClusterProcess, GivenRedis, new_seed
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import KEEPS, RedisProcess


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=DEADLINE)


def may_make_networks() -> bool:
    name = f"mqt{os.getpid()}"
    try:
        ip("link", "add", name, "type", "bridge")
        ip("link", "del", name)
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not may_make_networks(), reason="needs root and iproute2, to make network namespaces"
)
NUMBERS = itertools.count()


class Network:
    """A bridge with a leg in each of some namespaces; the host has one, too."""

    def __init__(self, names: list[str]) -> None:
        self.id = f"{os.getpid() % 100_000}{next(NUMBERS)}"
        self.subnet = f"10.{200 + os.getpid() % 50}.{int(self.id) % 250}"
        self.names = names
        self.hub = self.space("hub")
        self.host_leg = f"mh{self.id}"
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.hub, "link", "set", "bridge", "up")
        ip("link", "add", self.host_leg, "type", "veth", "peer", "name", "to-host", "netns", self.hub)
        self._connect("to-host")
        ip("addr", "add", f"{self.subnet}.1/24", "dev", self.host_leg)
        ip("link", "set", self.host_leg, "up")
        for name in names:
            space = self.space(name)
            ip("netns", "add", space)
            ip("-n", self.hub, "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", space)
            self._connect(f"to-{name}")
            ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def _connect(self, leg: str) -> None:
        ip("-n", self.hub, "link", "set", leg, "master", "bridge")
        ip("-n", self.hub, "link", "set", leg, "up")

    def space(self, name: str) -> str:
        """The namespace of a member."""
        return f"mq{self.id}{name}"

    def address(self, name: str) -> str:
        """The address of a member."""
        return f"{self.subnet}.{2 + self.names.index(name)}"

    def within(self, name: str) -> list[str]:
        """The beginning of a command line that is to run there."""
        return ["ip", "netns", "exec", self.space(name)]

    def plug(self, name: str, state: str) -> None:
        """Have a member's leg `up` or `down`: packets over it vanish."""
        ip("-n", self.hub, "link", "set", f"to-{name}", state)

    def close(self) -> None:
        for name in (*self.names, "hub"):
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(["redis", "a", "b", "c"])
    yield network
    network.close()


class FarRedis(RedisProcess):
    """A Redis in a namespace."""

    def __init__(self, directory: Path, network: Network) -> None:
        open_to_all = ["--bind", "0.0.0.0", "--protected-mode", "no"]
        super().__init__(directory, [*KEEPS["always"], *open_to_all], {"host": network.address("redis")})
        self.network = network

    def command(self) -> list[str]:
        return [*self.network.within("redis"), *super().command()]


class FarNode(ClusterNode):
    """A node in a namespace; clients reach it through a proxy on this machine."""

    def __init__(self, cluster: ClusterProcess, name: str, network: Network) -> None:
        super().__init__(cluster, name, None, {**cluster.settings, "auth.allow_anonymous": True})
        self.network = network
        self.listen = f"{network.address(name)}:0"
        self.door: TcpProxy | None = None

    def command(self) -> list[str]:
        return [*self.network.within(self.name), *super().command()]

    def wait_until_ready(self) -> "FarNode":
        super().wait_until_ready()
        self.door = TcpProxy((self.network.address(self.name), self.port))
        self.port = self.door.port
        return self


@pytest.fixture
def load(network: Network, tmp_path: Path) -> Iterator[ClusterLoad]:
    place = tmp_path / "redis"
    place.mkdir()
    redis = FarRedis(place, network).start()
    url = f"redis://{network.address('redis')}:{redis.port}/0"
    cluster = ClusterProcess(tmp_path, CLUSTER_SETTINGS, nodes="", redis=GivenRedis(redis, url), orderly=False)
    nodes = [FarNode(cluster, name, network) for name in "abc"]
    cluster.nodes += nodes
    try:
        yield ClusterLoad(cluster, new_seed())
        cluster.check()
    finally:
        try:
            cluster.close()
        finally:
            redis.kill()
            for node in nodes:
                if node.door is not None:
                    node.door.close()


@pytest.mark.parametrize("seconds", [LEASE / 3, 3 * LEASE], ids=["short", "long"])
@pytest.mark.parametrize("lonely", ["a", "redis"])
def test_nothing_acknowledged_is_lost(load: ClusterLoad, network: Network, lonely: str, seconds: float) -> None:
    """A node, or Redis, is alone for a while: packets vanish in both directions."""
    load.start()
    load.run(0.5)

    def partition() -> None:
        network.plug(lonely, "down")
        wait(seconds)
        network.plug(lonely, "up")
        wait(1)

    load.during(partition)
    load.finish()
    load.finish_twins()
