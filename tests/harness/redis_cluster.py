"""A real Redis Cluster on this machine: primaries with replicas, fail-over, and a slot that moves between primaries."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from flockmq.cluster.redis.keys import SLOTS, Keys
from tests.harness.deadline import DEADLINE
from tests.harness.ports import free_port
from tests.harness.redis_process import KEEPS, RedisProcess

SLOT = Keys("mq:", in_slot=True).slot  # of the keys of nodes with the default prefix
PIECE = 20  # keys that MIGRATE moves at once
FAIL_OVER_SECONDS = 6.0  # Redis gives up a fail-over by hand after 5: on a loaded machine it takes another attempt


class RedisCluster:
    """Primaries and their replicas.

    Args:
        directory: for the files of all.
        keeps: a key of KEEPS.
        primaries: their number.
        replicas: number of replicas of each.
        node_timeout: seconds after which a silent server is taken for dead.
        arguments: more of each server's command line.
        connection: a client's arguments beside the port.
    """

    def __init__(
        self,
        directory: Path,
        keeps: str = "always",
        *,
        primaries: int = 3,
        replicas: int = 1,
        node_timeout: float = 1.0,
        arguments: list[str] | None = None,
        connection: dict[str, Any] | None = None,
    ) -> None:
        self.primaries = primaries
        self.slot = SLOT  # whose owner is looked at, and that moves
        self.frozen: RedisProcess | None = None
        self.servers: list[RedisProcess] = []
        for number in range(primaries * (1 + replicas)):
            place = directory / f"redis-{number}"
            place.mkdir(parents=True)
            options = {
                "cluster-enabled": "yes",
                "cluster-node-timeout": int(node_timeout * 1000),
                "cluster-port": free_port(),
                "cluster-require-full-coverage": "no",
                "cluster-replica-validity-factor": 0,
                "cluster-allow-replica-migration": "no",
                "repl-diskless-sync-delay": 0,
                "repl-ping-replica-period": 1,
            }
            flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            self.servers.append(RedisProcess(place, [*KEEPS[keeps], *flags, *(arguments or [])], connection))

    @property
    def url(self) -> str:
        """Where to ask for the primary: three servers, without a password."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])

    # ---- life ----

    def start(self) -> "RedisCluster":
        """Start all; returns when each has all others and the replicas have everything."""
        for server in self.servers:
            server.start()
        first = self.servers[0]
        for number, server in enumerate(self.servers):
            with server.client() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                if number < self.primaries:
                    begin = SLOTS * number // self.primaries
                    end = SLOTS * (number + 1) // self.primaries - 1
                    client.execute_command("CLUSTER ADDSLOTSRANGE", begin, end)
                if server is not first:
                    bus = first.arguments[first.arguments.index("--cluster-port") + 1]
                    client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, bus)
        self.wait(lambda: all(len(self.rows(server)) == len(self.servers) for server in self.servers), "meet")
        for number, server in enumerate(self.servers[self.primaries :]):
            primary = self.id_of(self.servers[number % self.primaries])
            self.wait(lambda server=server, primary=primary: self._replicate(server, primary), "replicate")  # type: ignore[misc]
        self.wait_until_whole()
        return self

    def _replicate(self, server: RedisProcess, primary: str) -> bool:
        with contextlib.suppress(redis.ResponseError), server.client() as client:
            client.execute_command("CLUSTER REPLICATE", primary)
            return True
        return False

    def stop(self) -> None:
        """End all."""
        for server in self.servers:
            server.kill()

    @staticmethod
    def wait(condition: Callable[[], object], what: str = "get ready") -> None:
        """Wait for a state of the servers that only asking shows."""
        end = time.monotonic() + 2 * DEADLINE
        while True:
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                if condition():
                    return
            assert time.monotonic() < end, f"the Redis Cluster did not {what}"
            time.sleep(0.02)

    # ---- the servers' view ----

    @property
    def running(self) -> list[RedisProcess]:
        """The servers that run, and are not frozen."""
        return [server for server in self.servers if server.process is not None and server is not self.frozen]

    def rows(self, server: RedisProcess) -> list[list[str]]:
        """The words of the lines of CLUSTER NODES."""
        with server.client() as client:
            reply = redis.Redis.execute_command(client, "CLUSTER", "NODES")
        return [line.split() for line in str(reply).splitlines()]

    def id_of(self, server: RedisProcess) -> str:
        """The id of a server in the Redis Cluster."""
        with server.client() as client:
            return str(client.execute_command("CLUSTER MYID"))

    def _owner_at(self, server: RedisProcess) -> int:
        """The port of the primary that a server takes for the owner of the slot; 0: of none."""
        with server.client() as client:
            for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= self.slot <= last:
                    return int(port)
        return 0

    @property
    def owner(self) -> RedisProcess:
        """The primary that owns the slot; waits until all running servers agree, and it runs."""
        found: list[RedisProcess] = []

        def agree() -> bool:
            ports = {self._owner_at(server) for server in self.running}
            found[:] = [server for server in self.running if {server.port} == ports]
            return bool(found)

        self.wait(agree, "agree on the owner")
        return found[0]

    @property
    def replica(self) -> RedisProcess:
        """The replica of the owner, as soon as there is one."""
        found: list[RedisProcess] = []

        def is_known() -> bool:
            owner = self.id_of(self.owner)
            rows = [row for row in self.rows(self.owner) if row[3] == owner and "fail" not in row[2]]
            ports = {int(row[1].partition("@")[0].rpartition(":")[2]) for row in rows}
            found[:] = [server for server in self.servers if server.port in ports]
            return bool(found)

        self.wait(is_known, "know the owner's replica")
        return found[0]

    def wait_until_whole(self) -> None:
        """Wait until every slot has a primary, every replica a link to its own, and all servers see it so."""

        def whole() -> bool:
            for server in self.running:
                with server.client() as client:
                    if "cluster_state:ok" not in str(client.execute_command("CLUSTER", "INFO")):
                        return False
                    replication = client.info("replication")
                    if replication["role"] != "master" and replication["master_link_status"] != "up":
                        return False
                if any("fail" in row[2] or "handshake" in row[2] for row in self.rows(server)):
                    return False
            with self.owner.client() as client:
                return int(client.info("replication")["connected_slaves"]) >= 1 or len(self.servers) == self.primaries

        self.wait(whole, "get whole")

    # ---- events ----

    def kill_owner(self) -> RedisProcess:
        """kill -9 of the owner; returns it when its replica is the owner."""
        old = self.owner
        old.kill()
        assert self.owner is not old
        return old

    def freeze_owner(self) -> None:
        """SIGSTOP of the owner until its replica is the owner; then it goes on, and learns that it is a replica."""
        self.frozen = old = self.owner
        old.freeze()
        try:
            assert self.owner is not old
        finally:
            old.thaw()
            self.frozen = None
        self.wait_until_whole()

    def fail_over(self) -> None:
        """Fail over by hand to the owner's replica."""
        replica = self.replica
        asked_at = 0.0

        def has_taken_over() -> bool:
            nonlocal asked_at
            if self.owner is replica:
                return True
            if time.monotonic() >= asked_at + FAIL_OVER_SECONDS:
                asked_at = time.monotonic()
                with replica.client() as client, contextlib.suppress(redis.ResponseError):  # it is a primary by now
                    client.execute_command("CLUSTER FAILOVER")
            return False

        self.wait(has_taken_over, "fail over")
        self.wait_until_whole()

    def other_primary(self) -> RedisProcess:
        """A primary that does not own the slot."""
        owner = self.owner
        for server in self.running:
            with server.client() as client:
                if server is not owner and client.info("replication")["role"] == "master":
                    return server
        raise AssertionError("there is no other primary")

    def move_slot(self, target: RedisProcess, during: Callable[[], None] = lambda: None) -> None:
        """Move the slot to another primary, key by key; `during` is called when a part of the keys is at each."""
        source = self.owner
        with source.client(decode_responses=False) as at_source, target.client() as at_target:
            at_target.execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", self.id_of(source))
            at_source.execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", self.id_of(target))
            once = False
            while keys := at_source.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, PIECE):
                part = keys if once else keys[: (len(keys) + 1) // 2]
                at_source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *part)
                if not once:
                    once = True
                    during()
            for server in (target, source):
                with server.client() as client:
                    client.execute_command("CLUSTER SETSLOT", self.slot, "NODE", self.id_of(target))
        self.wait(lambda: self.owner is target, "move the slot")
