"""kill -9 of workers and of the Redis that they share, under QoS 1 and 2 load, judged by the checker.

FLOCKMQ_TEST_SEED repeats what the clients do, not the moments of the machine.
"""

from functools import partial
from pathlib import Path

import pytest
import redis

from flockmq._speedups.codec.packets import Publish
from flockmq.loadtest.prove import checker
from tests.faults.cluster_load import LEASE, meanwhile
from tests.faults.load import SETTINGS, Load
from tests.harness.cluster_process import new_seed
from tests.harness.socket_client import SocketClient
from tests.harness.workers_process import WorkersProcess

WORKERS_SETTINGS: dict[str, object] = {
    **SETTINGS,
    "mqtt.sys_interval": 0,
    "cluster.lease": LEASE,
    "cluster.timeout": 0.7,
}


class WorkersLoad(Load):
    """Clients of one port: the kernel gives each connection to a worker."""

    def __init__(self, workers: WorkersProcess, seed: int) -> None:
        super().__init__(workers, seed)
        self.workers = workers

    def settle(self) -> None:
        """Wills of dead workers have been published; all workers have what the others have accepted."""
        with redis.Redis(unix_socket_path=str(self.workers.redis_directory / "redis.sock")) as client:
            self.until(
                lambda: (
                    client.hlen("mq:nodes") == self.workers.workers
                    and not client.exists("mq:dead")
                    and sum(client.hlen(key) for key in client.scan_iter("mq:wills:*"))
                    == sum(mortal.socket is not None for mortal in self.mortals)
                ),
                "settled wills",
            )
        self.until(lambda: not [line for line in checker.wills(self.history) if "never came" in line], "wills")
        for number in range(2 * self.workers.workers):  # from any worker to any other
            payload = b"after %d" % number
            self.publishers[0].lose()
            self.publishers[0].publish("t/after", payload, 2)
            self.until(partial(self._is_delivered, payload), "the rest")
        self.until(lambda: not any(client.unreleased for client in self.subscribers), "PUBREL")

    def _is_delivered(self, payload: bytes) -> bool:
        return all(payload in client.taken for client in self.subscribers)


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_workers_and_their_redis_are_killed(tmp_path: Path, sync: str) -> None:
    workers = WorkersProcess(tmp_path, sync=sync, settings=WORKERS_SETTINGS)
    load = WorkersLoad(workers, new_seed())
    load.start()
    try:
        for number in (1, 2):
            load.run(0.5)
            meanwhile(load.act, workers.kill_redis)
            load.run(0.2)
            meanwhile(load.act, partial(workers.kill_worker, number))
        load.run(0.5)
        load.finish()
        assert workers.stop() == 0
        workers.start()
        with SocketClient(workers.port, "reader") as reader:
            reader.subscribe(("kept/#", 0))
            kept = {packet.topic_name: packet.payload for packet in reader.ping() if isinstance(packet, Publish)}
        assert checker.retained(load.history, kept) == []
    finally:
        status = workers.stop()
    workers.check()
    assert status == 0, workers.log_text()
