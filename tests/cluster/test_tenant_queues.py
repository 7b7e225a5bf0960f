"""A tenant's `max_queued_bytes` over all nodes: Redis has the sum of its queues after whatever changes them."""

import json
import random
from typing import Any

import pytest
import redis

from flockmq._speedups.base.msgpack import pack
from flockmq._speedups.cluster.message_codec import encode_message
from flockmq.cluster.redis.connector import function_library
from tests.harness.cluster_process import new_seed
from tests.harness.commits import commit_arguments
from tests.harness.function_caller import counted_size
from tests.harness.function_nodes import call_function, claim_session
from tests.harness.redis_process import RedisProcess
from tests.harness.stored_sessions import read_session, stored_queue

SUMS = "mq:queued:tenants"
LIMIT = 3000
TENANTS = (b"$tenant/acme/", b"$tenant/globex/")
NODES = (b"n1", b"n2", b"n3")
# A client id that only looks like one of a tenant, or like a group of one.
OTHERS = (b"c", b"$tenants/acme/c", b"$share/g/$tenant/acme/t")
SESSIONS = (*OTHERS, *(tenant + name for tenant in TENANTS for name in (b"a", b"b", b"clean")))
GROUPS = (b"$share/g/t", *(b"$share/g/" + tenant + b"t" for tenant in TENANTS))


class Cluster:
    """Nodes that are no more than their calls, which do at random all that changes a queue."""

    def __init__(self, port: int, seed: int) -> None:
        self.redis: Any = redis.Redis(port=port)
        self.redis.function_load(function_library(), replace=True)
        self.rng = random.Random(seed)
        self.sequence: dict[bytes, int] = {}
        self.epochs: dict[bytes, tuple[bytes, int]] = {}  # client id -> node and epoch of its connection
        self.reported: dict[bytes, dict[bytes, int]] = {}
        self.commit_limits = False
        for node in NODES:
            self.join(node)

    def call(self, name: str, *arguments: Any) -> Any:
        return call_function(self.redis, name, *arguments)

    def commit(self, node: bytes, tenants: list[Any] | None = None, **parts: Any) -> Any:
        self.sequence[node] += 1
        limits = (20, 4000, bool(self.rng.randrange(2)))
        of_groups = (20, 4000, self.rng.randrange(2))
        more = {"limits": limits, "group_limits": of_groups, "tenants": tenants or [], "shares": []} | parts
        return self.call("commit", node, *commit_arguments(self.sequence[node], **more))

    @property
    def limits(self) -> list[Any]:
        return [part for tenant in TENANTS for part in (tenant, LIMIT)]

    # ---- what nodes do ----

    def join(self, node: bytes) -> None:
        self.sequence[node] = 0
        self.call("join", node, 1, [], b"mq:", b"")

    def connect(self) -> None:
        """A client connects, or takes over its own connection; that ends at once, or stays at its node."""
        cid, node = self.rng.choice(SESSIONS), self.rng.choice(NODES)
        before = self.epochs.pop(cid, None)
        persistent = not cid.endswith(b"clean")
        clean = self.rng.random() < 0.2 or not persistent
        epoch = claim_session(self.redis, node, cid, int(persistent), 5, b"", 100, b"", int(clean), 1000, 0)[0]
        if before is not None:
            self.commit(before[0], releases=[[cid, before[1], 0, 1000]])
        self.epochs[cid] = node, epoch
        if persistent and self.rng.random() < 0.5:
            group = self.rng.choice(GROUPS)
            kind = self.rng.choice(("subscribed", "unsubscribed"))
            options = (2, 0) if kind == "subscribed" else ()
            self.commit(node, changes=pack([[kind, cid, self.incarnation(cid), group, *options], ["mark", 1]]))
            self.call("acks", node, [[], []], [[], [], [], [[group, cid, epoch, 8, 1, 2, 0, b""]]])

    def disconnect(self) -> None:
        if self.epochs:
            cid = self.rng.choice([*self.epochs])
            node, epoch = self.epochs.pop(cid)
            sent = self.rng.choice([0, *self.numbers(cid)])
            self.commit(node, releases=[[cid, epoch, sent, self.rng.choice((b"", 0, 1000))]])

    def publish(self) -> None:
        """Messages for sessions and groups; every other time the tenants have limits."""
        values = [self.message() for _ in range(3)]
        pushes = [[cid, self.incarnation(cid), 1, 3] for cid in self.rng.sample(SESSIONS, 3)]
        shares = [part for group in self.rng.sample(GROUPS, 2) for part in (group, [1, 2])]
        limits = self.rng.choice(([], self.limits))
        self.commit(self.rng.choice(NODES), limits, messages=values, pushes=pushes, shares=shares)

    def acknowledge(self) -> None:
        for cid, (node, _) in self.epochs.items():
            numbers = self.numbers(cid)
            done = self.rng.sample(numbers, self.rng.randint(0, len(numbers)))
            received = [part for number in numbers[:1] for part in (number, 0)]
            self.call("acks", node, [[], [[cid, self.incarnation(cid), done, received, b""]]], b"")

    def assign(self) -> None:
        """A node has room for messages of a group, and gives back or ends its assignments."""
        node, group = self.rng.choice(NODES), self.rng.choice(GROUPS)
        places = [*map(int, self.redis.hkeys(b"mq:gl:" + node + b" " + group))]
        done = [part for place in places[::2] for part in (group, place)]
        self.call(
            "acks", node, [[], []], [done, [group, self.rng.randint(0, 5), 1, 0, self.rng.choice([0, 40])], [], []]
        )
        self.commit(node, moves=[part for place in places[1::2] for part in (b"back", group, place, b"", 0, 0)])

    def declare(self) -> None:
        settings = {"last_value": self.rng.random() < 0.5, "max_queued_bytes": self.rng.choice((500, 5000))}
        text = self.rng.choice((json.dumps(settings), ""))
        self.call("declare_group", self.rng.choice(NODES), self.rng.choice(GROUPS), text)

    def purge(self) -> None:
        if self.rng.random() < 0.5:
            self.call("purge_group", self.rng.choice(GROUPS))
        else:
            self.call("purge", self.rng.choice(SESSIONS))

    def expire(self) -> None:
        """The time of sessions without a connection is over, or the time to keep their groups' messages."""
        for cid in self.redis.zrange("mq:grace", 0, 1):
            self.redis.zadd("mq:grace", {cid: 1})
        self.redis.hincrby("mq:clock", "t", self.rng.choice((1, 100, 1000)) * 1000)
        self.call("due", self.rng.choice(NODES), 10)
        self.call("expire", self.rng.choice(NODES), 100, 10)

    def die(self) -> None:
        """A node dies or leaves, and joins again."""
        node, other = self.rng.sample(NODES, 2)
        if self.rng.random() < 0.5:
            self.call("bury", other, node, self.redis.hget("mq:nodes", node), 0)
        else:
            self.call("leave", node)
        self.call("tidy", 100)
        self.epochs = {cid: at for cid, at in self.epochs.items() if at[0] != node}
        self.reported.pop(node, None)
        self.join(node)

    def report(self) -> None:
        node, bytes_here = self.rng.choice(NODES), {tenant: self.rng.choice((0, 7, 900)) for tenant in TENANTS}
        [found] = self.call("queued", node, [*(part for item in bytes_here.items() for part in item)])
        self.reported[node] = bytes_here
        assert found == [self.sums[tenant] - here for tenant, here in bytes_here.items()]

    def restore(self) -> None:
        """A node gives back a message of QoS 2 that Redis has lost."""
        if self.epochs:
            cid = self.rng.choice([*self.epochs])
            number = max(self.numbers(cid), default=0) + self.rng.randint(1, 3)
            session = [cid, self.incarnation(cid), [[number, encode_message(b"t", b"lost", 2, False)]]]
            self.call("restore", self.epochs[cid][0], [session])

    # ---- what Redis has ----

    def message(self) -> bytes:
        topic = self.rng.choice((b"t", b"u"))
        return encode_message(topic, bytes(self.rng.choice((0, 10, 300, 2500))), self.rng.choice((1, 2)), False)

    def incarnation(self, cid: bytes) -> int:
        session = read_session(self.redis, cid)
        return session.incarnation if session is not None else 0

    def numbers(self, cid: bytes) -> list[int]:
        """Of the entries of a queue."""
        session = read_session(self.redis, cid)
        first = session.head if session is not None else 1
        return [*range(first, first + len(stored_queue(self.redis, cid)))]

    def size(self, key: bytes) -> int:
        """Bytes of the values of a list, or a hash."""
        values = self.redis.lrange(key, 0, -1) if self.redis.type(key) == b"list" else self.redis.hvals(key)
        return counted_size(values)

    @property
    def sums(self) -> dict[bytes, int]:
        """The sum of each tenant, found by looking at all queues."""
        found = {
            tenant: sum(
                counted_size(stored_queue(self.redis, key[5:]))
                for key in self.redis.scan_iter(b"mq:s:" + tenant + b"*")
            )
            + sum(self.size(b"mq:" + kind + b"$share/g/" + tenant + b"t") for kind in (b"gw:", b"gm:"))
            for tenant in TENANTS
        }
        for reported in self.reported.values():
            for tenant, size in reported.items():
                found[tenant] += size
        return found

    @property
    def counted(self) -> dict[bytes, int]:
        return {tenant: int(size) for tenant, size in self.redis.hgetall(SUMS).items() if int(size)}


@pytest.mark.parametrize("_", range(4))
def test_the_sum_is_that_of_all_queues(redis_server: RedisProcess, _: int) -> None:
    seed = new_seed()
    cluster = Cluster(redis_server.port, seed)
    steps = [cluster.publish] * 6 + [cluster.connect] * 4 + [cluster.acknowledge] * 2
    steps += [cluster.disconnect, cluster.assign, cluster.declare, cluster.purge, cluster.expire, cluster.die]
    steps += [cluster.report, cluster.restore]
    busy = 0
    for number in range(400):
        step = cluster.rng.choice(steps)
        step()
        sums = {tenant: size for tenant, size in cluster.sums.items() if size}
        assert cluster.counted == sums, (seed, number, step.__name__)
        busy += len(sums)
    assert busy > 100, "there were queues"
    for node in NODES:
        cluster.call("leave", node)
        cluster.call("tidy", 100)
        assert cluster.call("queued", node, [TENANTS[0], 7]) == [b"gone"], "it is dead, and can't report"
    for cid in SESSIONS:
        cluster.call("purge", cid)  # their groups' messages go back
    for group in GROUPS:
        cluster.call("purge_group", group)
    assert cluster.counted == {}


@pytest.mark.parametrize("_", range(2))
def test_no_commit_exceeds_the_limit(redis_server: RedisProcess, _: int) -> None:
    """All commits have limits: only a node's own messages, and messages that go back to a group, may be above."""
    seed = new_seed()
    cluster = Cluster(redis_server.port, seed)
    steps = [cluster.publish] * 6 + [cluster.connect] * 3 + [cluster.acknowledge, cluster.disconnect, cluster.purge]
    for number in range(300):
        before = cluster.counted
        step = cluster.rng.choice(steps)
        if step == cluster.publish:
            values = [cluster.message() for _ in range(3)]
            pushes = [[cid, cluster.incarnation(cid), 1, 2, 3] for cid in cluster.rng.sample(SESSIONS, 3)]
            cluster.commit(cluster.rng.choice(NODES), cluster.limits, messages=values, pushes=pushes)
            for tenant, size in cluster.counted.items():
                assert size <= max(LIMIT, before.get(tenant, 0)), (seed, number)
        else:
            step()


@pytest.mark.parametrize("drop_old", [False, True])
def test_a_full_tenant_drops_as_a_full_queue_does(redis_server: RedisProcess, drop_old: bool) -> None:
    """The queue that a message is for loses its oldest, or the message; the other queues lose nothing."""
    cluster = Cluster(redis_server.port, 1)
    cids = [TENANTS[0] + name for name in (b"a", b"b")] + [OTHERS[0]]
    for cid in cids:
        epoch = claim_session(cluster.redis, b"n1", cid, 1, 5, b"", 100, b"", 0, 1000, 0)[0]
        cluster.commit(b"n1", releases=[[cid, epoch, 0, 1000]])

    def push(cid: bytes, text: bytes) -> None:
        pushes = [[cid, cluster.incarnation(cid), 1]]
        cluster.commit(b"n1", cluster.limits, messages=[text * 500], pushes=pushes, limits=(99, 1 << 20, drop_old))

    def queue(cid: bytes) -> bytes:
        return b"".join(value[:1] for value in stored_queue(cluster.redis, cid))

    for text in (b"a", b"b", b"c"):
        for cid in cids:
            push(cid, text)
    assert [queue(cid) for cid in cids] == [b"abc"] * 3
    for text in (b"d", b"e"):
        for cid in cids[1:]:
            push(cid, text)
    assert queue(cids[0]) == b"abc"
    assert queue(cids[1]) == (b"cde" if drop_old else b"abc")
    assert queue(cids[2]) == b"abcde"
    assert cluster.counted == {TENANTS[0]: LIMIT}
    cluster.call("purge", cids[0])
    push(cids[1], b"f")
    assert queue(cids[1]) == (b"cdef" if drop_old else b"abcf")


def test_a_damaged_sum_stops_no_message(redis_server: RedisProcess) -> None:
    """Without the sum there is no limit; a sum that is written again has the later changes."""
    cluster = Cluster(redis_server.port, 1)
    cid = TENANTS[0] + b"a"
    claim_session(cluster.redis, b"n1", cid, 1, 5, b"", 100, b"", 0, 1000, 0)
    cluster.redis.set(SUMS, "wrong")
    push = {"messages": [b"x" * 2000], "pushes": [[cid, cluster.incarnation(cid), 1]]}
    for length in (1, 2):
        assert cluster.commit(b"n1", cluster.limits, **push)[3] == [length, 1]
    cluster.redis.delete(SUMS)
    cluster.call("acks", b"n1", [[], [[cid, cluster.incarnation(cid), [1], [], b""]]], b"")
    assert cluster.counted == {}
    cluster.call("purge", cid)
    assert cluster.counted == {}
