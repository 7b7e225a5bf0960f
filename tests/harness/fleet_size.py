"""`python -m tests.harness.fleet_size`: the memory that a large fleet takes, over several Redis primaries.

Processes write persistent sessions with one filter each into new Redis, one for each shard, as `flockmq migrate` writes
them. Then nodes join. Printed are bytes a session in Redis and in a node, and the time and the CPU time of a join.
"""

import argparse
import multiprocessing
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from flockmq._speedups.cluster.sharded_journal import shard_of
from flockmq.broker.config.load import load
from flockmq.cluster.migration.key_writer import KeyWriter
from flockmq.cluster.migration.state import StoredSession, wall_clock
from flockmq.cluster.redis.shard_addresses import addresses_of, places_of
from tests.harness.cluster_process import ClusterProcess, GivenRedis
from tests.harness.redis_process import several, urls


class Clock:
    """In place of a state: its clock."""

    clock = wall_clock()


def write(where: str, shard: int, shards: int, count: int) -> None:
    """Write the sessions of one shard. `count`: of the sessions of all shards."""
    config = load({"cluster.redis": where})
    address = addresses_of(config.cluster)[shard]
    with address.client(60) as client:
        keys = address.keys
        state: object = Clock()
        writer = KeyWriter(client, keys, config, state, shard=shard, shards=shards)  # type: ignore[arg-type]
        for number in range(1, count + 1):
            client_id = b"device-%08d" % number
            if shard_of(client_id, shards) == shard:
                filters = {b"fleet/d%08d/commands/#" % number: (1, 0)}
                writer.write_session(StoredSession(client_id, number, 5, subscriptions=filters))
        writer.end()
        if shards > 1:
            client.set(keys.prefix + b"shards", places_of(addresses_of(config.cluster))[shard].shards)


def memory(pid: int) -> int:
    """The resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu(pid: int) -> float:
    """The CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.fleet_size", description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--primaries", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=2)
    options = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-")))
        servers = stack.enter_context(several(place, options.primaries, "nothing"))
        where = urls(servers)
        began = time.monotonic()
        writers = [
            multiprocessing.Process(target=write, args=(where, shard, options.primaries, options.sessions))
            for shard in range(options.primaries)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert not any(writer.exitcode for writer in writers)
        used = [int(server.client().info("memory")["used_memory"]) for server in servers]
        print(f"{options.sessions:,} sessions written in {time.monotonic() - began:.0f} s", flush=True)
        print(f"Redis: {sum(used) / options.sessions:.0f} bytes a session, {max(used) / 1e9:.2f} GB the fullest")
        names = [f"n{number}" for number in range(options.nodes)]
        cluster = ClusterProcess(place, nodes=names, redis=GivenRedis(servers[0], where), orderly=False)
        stack.callback(cluster.close)
        for node in cluster.nodes:
            began = time.monotonic()
            node.start()
            assert node.process is not None
            size, seconds = memory(node.process.pid), cpu(node.process.pid)
            print(
                f"{node.name}: joined in {time.monotonic() - began:.1f} s, {seconds:.1f} s of CPU, "
                f"{size / options.sessions:.0f} bytes a session, {size / 1e9:.2f} GB",
                flush=True,
            )


if __name__ == "__main__":
    main()
