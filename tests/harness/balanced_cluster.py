"""The cluster as it is deployed, as processes: three real nodes, their Redis, and a real HAProxy before them.

Each node has its address in 127.0.0.0/8, and all the same ports there, as containers and machines have.
"""

import random
from pathlib import Path
from typing import Any

from tests.harness.cluster_process import ClusterNode, ClusterProcess
from tests.harness.haproxy_process import HaproxyProcess
from tests.harness.ports import free_port


class BalancedCluster:
    """Nodes behind a load balancer: `port` is where clients connect.

    Args:
        directory: for the files of all.
        settings: of all nodes, as for BrokerProcess.
        nodes: their names.
        variables: more of HAProxy's environment.
    """

    def __init__(
        self,
        directory: Path,
        settings: dict[str, object] | None = None,
        *,
        nodes: str = "abc",
        variables: dict[str, str] | None = None,
    ) -> None:
        self.cluster = ClusterProcess(directory, {"mqtt.sys_interval": 0, **(settings or {})}, nodes=(), orderly=False)
        mqtt_port, http_port = free_port(), free_port()
        network = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
        hosts = [f"{network}.{number}" for number, _ in enumerate(nodes, 1)]
        for name, host in zip(nodes, hosts, strict=True):
            listens = {"proxy.listen": f"{host}:{mqtt_port}", "http.listen": f"{host}:{http_port}"}
            listens["auth.allow_anonymous"] = "true"  # it is not what these tests are about
            self.cluster.add(name, **listens)
        self.haproxy = HaproxyProcess(directory, [f"{host}:{mqtt_port}" for host in hosts], http_port, variables)

    def start(self) -> "BalancedCluster":
        """Start all; the nodes are ready then."""
        self.cluster.start()
        self.haproxy.start()
        return self

    @property
    def port(self) -> int:
        """Where clients connect."""
        return self.haproxy.port

    def __getitem__(self, name: str) -> ClusterNode:
        return self.cluster[name]

    def server(self, node: ClusterNode) -> str:
        """HAProxy's name of a node."""
        return f"node-{self.cluster.nodes.index(node) + 1}"

    def connected(self, client_id: str, **values: object) -> dict[str, Any]:
        """The log line of a client's connect, of the node that has it (needs log.level = debug)."""
        return self.cluster.wait_for_log("client connected", client_id=client_id, **values)

    def close(self) -> None:
        """End everything; fails if a node ended badly or has logged an internal fault."""
        try:
            self.haproxy.stop()
        finally:
            try:
                self.cluster.close()
            except AssertionError:
                print(self.cluster.log_text())
                raise
        self.cluster.check()
