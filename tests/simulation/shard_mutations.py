"""Deliberate faults in the rules between shards: runs of clusters with several shards find them."""

from dataclasses import replace
from functools import partial
from typing import Any

from flockmq.cluster.among import Among
from flockmq.cluster.orphans import Orphans
from flockmq.cluster.redis.store import RedisStore
from flockmq.cluster.replication.flush import Flush
from flockmq.cluster.replication.routes import Routes
from flockmq.cluster.sharding.store import ShardedStore
from tests.simulation.mutation import Mutation
from tests.simulation.plan import ClientPlan, Plan, Step

AT_HOME = b"mq:"  # the prefix of the first shard
# Each brings together what its fault needs. The server of a fault is that of its millisecond: odd times, the second.
PUBLISHER = ClientPlan("publisher 1", "publisher", 4, node="n0", is_patient=True)  # in the first of two shards
SUBSCRIBER = ClientPlan("subscriber 0", "subscriber", 4, node="n2")  # in the second shard
VISITOR = ClientPlan("visitor 0", "visitor", 4, clean=True, qos=1, node="n2")


def _plan(clients: tuple[ClientPlan, ...], *steps: Step) -> Plan:
    return Plan(1, clients, steps, frozenset(), shards=2)


SHARDED_PLANS = {
    # The messages of a connection are late in one shard, and the next connection publishes at another node.
    "released before all is stored": _plan(
        (PUBLISHER, SUBSCRIBER, VISITOR),
        Step(2001, "cut", ("n0", "redis", "there", 300)),
        Step(2020, "publish", ("publisher 1", "t/0", 0, 2)),
        Step(2080, "move", ("publisher 1", "n1")),
        *(Step(2140 + 20 * i, "publish", ("publisher 1", "t/0", 0, 1)) for i in range(4)),
    ),
    # The node of a publisher is late to hear of a subscription, in one shard.
    "SUBACK of one shard": _plan(
        (replace(PUBLISHER, node="n1"), SUBSCRIBER, VISITOR),
        Step(2001, "cut", ("n1", "redis", "back", 400)),
        Step(2060, "move", ("visitor 0", "n0")),
        *(Step(2080 + 20 * i, "publish", ("publisher 1", "t/0", 1, 1)) for i in range(8)),
    ),
    # A node is late to store a retained message in one shard, when it applies the subscription of a client elsewhere.
    "applied before all is stored": _plan(
        (ClientPlan("keeper", "keeper", 4, node="n0", is_patient=True), VISITOR),
        Step(2001, "cut", ("n0", "redis", "there", 600)),
        Step(2030, "keep", (0, False)),
        Step(2100, "move", ("visitor 0", "n1")),
    ),
    # A publication is given to the shard of its receiver, does not end in that of its publisher, and the node dies.
    "orphans forgotten unasked": _plan(
        (PUBLISHER, SUBSCRIBER),
        *(Step(1990 + 2 * i, "publish", ("publisher 1", "t/0", 2, 1)) for i in range(6)),
        Step(2000, "cut", ("n0", "redis", "there", 3000)),
        Step(2030, "kill", ("n0", 2000)),
        Step(2031, "away", ("publisher 1", 6000)),
    ),
}


def released_at_once(flushed: Any) -> Any:
    """Of Among: a connection is released although its messages are under way."""
    return lambda self, done: done()


def stored_at_once(when_stored: Any) -> Any:
    """Of Flush: a change counts as applied before the retained messages of this node are stored."""
    return lambda self, done: done()


def without_ping(when_applied: Any) -> Any:
    """Of Flush: SUBACK does not wait for what other shards have sent."""

    def applied(self: Flush, done: Any, shards: int, late: Any = None) -> None:
        first, asked = self._barriers[0], self._ask
        self._ask = lambda done, *rest: done()  # type: ignore[method-assign]
        try:
            self._turn.after_commit(partial(first.when_last_applied, done))
        finally:
            self._ask = asked  # type: ignore[method-assign]

    return applied


def forget_unasked(found: Any) -> Any:
    """Of Orphans: all are over."""

    def judged(self: Orphans, reply: Any) -> None:
        if isinstance(reply, list):
            self._judge(reply, [0] * len(reply))

    return judged


def end_in_any_order(advance: Any) -> Any:
    """Of ShardedStore: a turn ends as soon as it is given, also before earlier ones."""

    def advanced(self: ShardedStore) -> None:
        for turn in [turn for turn in self._turns if not turn.given and not turn.ends]:
            end(self, turn)
        advance(self)

    return advanced


def end_at_once(commit: Any) -> Any:
    """Of ShardedStore: what ends is sent together with what is given."""

    def committed(self: ShardedStore, block: Any) -> None:
        commit(self, block)
        for turn in [turn for turn in self._turns if not turn.ends]:
            end(self, turn)

    return committed


def end(store: ShardedStore, turn: Any) -> None:
    """Send the blocks of what ends with a turn."""
    turn.ends, turn.ending = True, len(turn.block.ending)
    for shard, journal in turn.block.ending:
        store._under_way[shard].append((turn, True))
        store._stores[shard].commit(journal.take())


def leave_one_out(flow: Any) -> Any:
    """Of RedisStore: the first block that Redis lacks is not sent again, but in the first shard."""

    def flowing(self: RedisStore, link: Any, applied: int) -> None:
        lacking = next((waiting for waiting in self._waiting if waiting.seq > applied), None)
        if lacking is not None and not self._log_key.startswith(AT_HOME + b"analytics"):
            applied = lacking.seq
        flow(self, link, applied)

    return flowing


def in_one_shard(init: Any) -> Any:
    """Of Routes: all nodes have their routes in the first shard, and look for them at home."""

    def made(self: Routes, journal: Any, node: bytes = b"", memberships: Any = None) -> None:
        sharded = memberships._journal if memberships is not None else None
        init(self, journal if sharded is None else sharded.part(0), node, memberships)

    return made


def buried_in_one(died: Any) -> Any:
    """Of Among: a node is dead in one shard only."""
    return lambda self, where, node: None


SHARDED = (
    Mutation(
        "buried in one shard",
        "G5",
        "a node that is dead in one shard lives on in others until they notice",
        methods=((Among, "died", buried_in_one),),
        needs_shards=True,
    ),
    Mutation(
        "released before all is stored",
        "G7",
        "a connection is released in its shard, and its messages are not in others yet",
        methods=((Among, "flushed", released_at_once),),
        needs_shards=True,
    ),
    Mutation(
        "number not noted",
        "G2",
        "a shard gives a publication again that it has given already",
        lua=(
            (
                "redis.call('HSETNX', prefix .. 'once', number, node) == 0 then",
                "redis.call('HSETNX', prefix .. 'once', number, node) == 9 then",
            ),
        ),
        needs_shards=True,
    ),
    Mutation(
        "applied before all is stored",
        "G4",
        "a change is reported as applied before the retained messages of this node are stored",
        methods=((Flush, "when_stored", stored_at_once),),
        needs_shards=True,
    ),
    Mutation(
        "SUBACK of one shard",
        "G4",
        "SUBACK waits for the first shard only",
        methods=((Flush, "when_applied", without_ping),),
        needs_shards=True,
    ),
    Mutation(
        "number not forgotten",
        "R1",
        "Redis has the numbers of publications for ever",
        lua=(("  in_parts('HDEL', prefix .. 'once', numbers)\n", ""),),
        needs_shards=True,
    ),
    Mutation(
        "orphans forgotten unasked",
        "G2",
        "the numbers of a dead node are forgotten although another node may give its publications again",
        methods=((Orphans, "_found", forget_unasked),),
        needs_shards=True,
    ),
    Mutation(
        "turns end in any order",
        "G7",
        "a publication ends before an earlier one of its client",
        methods=((ShardedStore, "_advance", end_in_any_order),),
        needs_shards=True,
    ),
    Mutation(
        "ends before it is given",
        "G1",
        "a publication ends in its shard before other shards have it",
        methods=((ShardedStore, "commit", end_at_once),),
        needs_shards=True,
    ),
    Mutation(
        "part not sent again",
        "G1",
        "a block of one shard is not sent again when its link is back",
        methods=((RedisStore, "flow", leave_one_out),),
        needs_shards=True,
    ),
    Mutation(
        "routes in one shard",
        "G4",
        "nodes have their routes in the first shard, not at home",
        methods=((Routes, "__init__", in_one_shard),),
        needs_shards=True,
    ),
)
