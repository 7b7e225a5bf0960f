"""Damaged keys in Redis: a call of a function is applied but for the step that meets one, or not at all."""

from typing import Any

import pytest
import redis

from flockmq._speedups.base.msgpack import pack
from flockmq._speedups.codec.packets import Puback, Publish, Pubrec, Suback, Subscribe
from flockmq.broker.core.will import Will
from flockmq.cluster.sessions.wills import encode_will
from tests.conftest import StartCluster
from tests.harness.cluster_process import ClusterProcess
from tests.harness.commits import commit_arguments
from tests.harness.function_caller import MESSAGE, Caller
from tests.harness.socket_client import SocketClient
from tests.harness.stored_sessions import stored_queue, stored_session

GROUP, OTHER_GROUP = b"$share/g/t", b"$share/h/t"


def damage(caller: Caller, key: bytes, *, field: str = "") -> None:
    """Give the key another type, or take a field of a hash away."""
    if field:
        assert caller.redis.hdel(key, field)
        return
    kind = caller.redis.type(key)
    caller.redis.delete(key)
    if kind == b"string":
        caller.redis.rpush(key, "damaged")
    else:
        caller.redis.set(key, "damaged")


def make_long(caller: Caller, cid: bytes) -> None:
    """The queue of the session is a list."""
    caller.commit(pushes=caller.push(cid) * 9)


@pytest.mark.parametrize(
    ("key", "value"), [(b"mq:q:b", "damaged"), (b"mq:s:b", None), (b"mq:s:b", "damaged"), (b"mq:s:b", "")]
)
def test_a_damaged_session_keeps_no_message_of_a_commit_from_the_others(
    caller: Caller, key: bytes, value: str | None
) -> None:
    pushes = caller.push(b"a", b"b", b"c")
    if key == b"mq:q:b":
        make_long(caller, b"b")
    if value is None:
        damage(caller, key)
    else:
        caller.redis.set(key, value)
    _, dropped, _, numbers, full, leased, *_, (kind, name, named, reason) = caller.commit(pushes=pushes)
    assert dropped == 0
    assert numbers == [0, 1, 0, 0, 0, 1]
    assert (kind, name, named) == (b"client", b"b", key)
    assert reason
    assert (full, leased) == ([], [])
    assert [len(stored_queue(caller.redis, cid)) for cid in (b"a", b"c")] == [1, 1]
    assert caller.send(caller.seq, pushes=pushes) == [b"again"]
    assert [len(stored_queue(caller.redis, cid)) for cid in (b"a", b"c")] == [1, 1]


@pytest.mark.parametrize("part", ["awaiting", "released", "changes", "releases"])
def test_likewise_of_its_other_keys(caller: Caller, part: str) -> None:
    """Records before and behind the damaged session's record in the same commit are applied."""
    cids = (b"a", b"b", b"c")
    kind = {"awaiting": b"in", "released": b"in", "changes": b"subs", "releases": b"s"}[part]
    for cid in cids:
        caller.redis.delete(b"mq:subs:" + cid)
        if part == "releases":
            caller.claimed(b"n1", cid, 1, 5, b"", 100, b"", 0, 1000, 0)
    epochs = {cid: stored_session(caller.redis, cid).epoch for cid in cids}
    if part == "released":
        caller.commit(awaiting=[[cid, caller.incarnation(cid), 7, 1] for cid in cids])
    records: dict[str, Any] = {
        "awaiting": [[cid, caller.incarnation(cid), 7, 1] for cid in cids],
        "released": [[cid, caller.incarnation(cid), 7] for cid in cids],
        "changes": pack([["subscribed", cid, caller.incarnation(cid), b"t", 1, 0] for cid in cids]),
        "releases": [[cid, epochs[cid], 0] for cid in cids],
    }
    caller.redis.set(b"mq:" + kind + b":b", "damaged")
    change, *_, damaged = caller.commit(**{part: records[part]})
    assert damaged[:3] == [b"client", b"b", b"mq:" + kind + b":b"]
    for cid in (b"a", b"c"):
        if part == "changes":
            assert change
            assert caller.redis.hgetall(b"mq:subs:" + cid) == {b"t": b"1;0"}
        elif part == "releases":
            assert stored_session(caller.redis, cid).owner == b""
        else:
            assert caller.redis.exists(b"mq:in:" + cid) == (part == "awaiting")


def test_a_damaged_group_keeps_no_message_from_others(caller: Caller) -> None:
    for group in (GROUP, OTHER_GROUP):
        caller.call("declare_group", b"n1", group, "{}")
    caller.redis.set(b"mq:gw:" + GROUP, "damaged")
    pushes = caller.push(b"a")
    shares = [GROUP, [1, 1], OTHER_GROUP, [1]]
    *_, damaged = caller.commit(pushes=pushes, shares=shares)
    assert damaged[:3] == [b"group", GROUP, b"mq:gw:" + GROUP]
    assert caller.redis.llen(b"mq:gw:" + OTHER_GROUP) == 1
    assert len(stored_queue(caller.redis, "a")) == 1
    # Acknowledgements of clients are not kept from Redis either, and their repetition has no effect.
    reply = caller.call(
        "acks", b"n1", [[], [[b"a", caller.incarnation(b"a"), [1], [], b""]]], [[], [GROUP, 5, 1, 0, 0], [], []]
    )
    assert reply[3][:3] == [b"group", GROUP, b"mq:gw:" + GROUP]
    assert len(stored_queue(caller.redis, "a")) == 0


def test_acknowledgements_of_a_damaged_session_keep_no_others_away(caller: Caller) -> None:
    cids = (b"a", b"b", b"c")
    caller.commit(pushes=caller.push(*cids))
    acks = [[cid, caller.incarnation(cid), [1], [], b""] for cid in cids]
    make_long(caller, b"b")
    damage(caller, b"mq:q:b")
    reply = caller.call("acks", b"n1", [[], acks], b"")
    assert reply[3][:3] == [b"client", b"b", b"mq:q:b"]
    assert [len(stored_queue(caller.redis, cid)) for cid in (b"a", b"c")] == [0, 0]


BLOCKS: dict[str, dict[str, Any]] = {
    "wills": {"wills": [b"settled", 1, 0]},
    "log": {"batch": b"batch", "batch_header": b"header", "targets": [[b"n2", b""]]},
    "changes": {"changes": pack([["retained", b"t", MESSAGE]])},
    "later": {"delayed": [1, 60, b""]},
}


@pytest.mark.parametrize(
    ("key", "part"),
    [
        (b"mq:wills:n1", "wills"),
        (b"mq:log:n1", "log"),
        (b"mq:routes:n1", "changes"),
        (b"mq:changes", "changes"),
        (b"mq:change", "changes"),
        (b"mq:retained", "changes"),
        (b"mq:later", "later"),
        (b"mq:later:messages", "later"),
        (b"mq:epoch", "later"),
    ],
)
def test_what_a_whole_block_needs_is_checked_before_anything_is_written(caller: Caller, key: bytes, part: str) -> None:
    damage(caller, key)
    before = caller.dump()
    with pytest.raises(redis.ResponseError, match=f"DAMAGED {key.decode()}: "):
        caller.commit(pushes=caller.push(b"a", b"c"), **BLOCKS[part])
    assert caller.dump() == before
    caller.redis.delete(key)  # it is repaired, and the node repeats the commit
    assert caller.send(caller.seq, pushes=caller.push(b"a", b"c"), **BLOCKS[part])[3] == [0, 1, 0, 1]


@pytest.mark.parametrize("block", [b"\x9d\xc1", b"", pack([[], b"", [], b"\x9d\xc1"])])
def test_a_block_that_is_unreadable_changes_nothing(caller: Caller, block: bytes) -> None:
    before = caller.dump()
    with pytest.raises(redis.ResponseError):
        seq, _, *others = commit_arguments(caller.seq + 1)
        caller.redis.fcall("flockmq_commit", 0, "mq:", b"n1", seq, block, *others)
    assert caller.dump() == before


def test_what_ends_sessions_goes_on_behind_a_damaged_one(caller: Caller) -> None:
    """Expiry, and the end of a dead node: each function would meet the damaged session again and again."""
    for cid in (b"a", b"b", b"c"):
        caller.claim(cid, b"n1")
        caller.commit(releases=[[cid, stored_session(caller.redis, cid).epoch, 0, 1]])
    damage(caller, b"mq:s:b")
    caller.call("beat", b"n1", 0, [])
    caller.redis.hincrby("mq:clock", "t", 5000)
    assert caller.call("due", b"n1", 100)[0] == 2
    assert caller.call("due", b"n1", 100)[0] == 0
    assert caller.call("purge", b"b") == [b"purged"]
    assert not [key for key in caller.dump() if key.startswith((b"mq:s:", b"mq:q:"))]


def test_a_dead_node_with_damaged_keys_is_buried(caller: Caller) -> None:
    will, other = (encode_will(cid, Will(b"t", b"x", 1, False)) for cid in (b"b", b"c"))
    caller.claimed(b"n2", b"b", 1, 5, will, 100, b"", 0, 1000, 0)
    epoch = caller.claimed(b"n2", b"c", 1, 5, other, 100, b"", 0, 1000, 0)[0]
    damage(caller, b"mq:s:b")
    for key in ("mq:routes:n2", "mq:gn:n2"):
        caller.redis.set(key, "damaged")
    (wills,) = caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0)
    assert {*wills[1::2]} == {will, other}
    assert epoch in wills[::2]
    assert not caller.redis.hexists("mq:nodes", "n2")
    assert caller.call("tidy", 100) == 2
    assert stored_session(caller.redis, "c").owner == b""


def test_a_node_joins_and_resumes_beside_a_damaged_session(caller: Caller) -> None:
    for cid in (b"a", b"b", b"c"):
        caller.commit(changes=pack([["subscribed", cid, caller.incarnation(cid), b"t", 1, 0]]))
    caller.commit(pushes=caller.push(b"a", b"b", b"c"))
    incarnations = [caller.incarnation(cid) for cid in (b"a", b"b", b"c")]
    make_long(caller, b"b")
    damage(caller, b"mq:q:b")
    tails = [field for cid in (b"a", b"b", b"c") for field in (cid, 1)]
    assert caller.call("behind", b"n1", [*tails]) == [b"a", b"c"]
    tails = [part for cid, x in zip((b"a", b"b", b"c"), incarnations, strict=True) for part in (cid, x, 9)]
    assert caller.call("lost", b"n1", [*tails]) == [b"a", b"c"]
    damage(caller, b"mq:subs:b")
    assert {*caller.call("sessions", b"0", 100)[1][::3]} == {b"a", b"c"}


# ---- nodes ----


def test_one_damaged_queue_holds_nobody_up(start_cluster: StartCluster) -> None:
    """Others get their messages and the publisher its PUBACK; the log names the key; a purge heals it."""
    cluster: ClusterProcess = start_cluster({}, nodes="ab")
    for name in ("damaged", "sound"):
        with SocketClient(cluster["a"].port, name, clean_start=False) as client:
            client.subscribe(("t", 1))
    store = cluster.redis.client()
    with (
        SocketClient(cluster["b"].port, "publisher") as publisher,
        SocketClient(cluster["a"].port, "sound", clean_start=False) as sound,
    ):
        store.set("mq:s:damaged", "a value of someone else")
        for number in (1, 2):
            publisher.send(Publish("t", b"%d" % number, qos=1, packet_id=number))
            assert publisher.receive() == Puback(packet_id=number)
            packet = sound.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == b"%d" % number
            sound.send(Puback(packet_id=packet.packet_id))
        line = cluster.wait_for_log("a key in Redis is damaged", node="b")
        assert (line["client_id"], line["key"]) == ("damaged", "mq:s:damaged")
        assert len([line for line in cluster["b"].log if "is damaged" in line["event"]]) == 1
        refused = SocketClient(cluster["a"].port, "damaged", clean_start=False)
        assert refused.connack is not None and refused.connack.reason_code == 3
        assert "mq:s:damaged" in cluster.wait_for_log("Redis refuses a session", node="a")["reason"]
        assert store.fcall("flockmq_purge", 0, "mq:", "damaged") == ["purged"]
        with SocketClient(cluster["a"].port, "damaged", clean_start=False) as client:
            client.subscribe(("t", 1))
            publisher.send(Publish("t", b"3", qos=1, packet_id=3))
            packet = client.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == b"3"


def test_nothing_is_acknowledged_to_a_client_whose_own_key_is_damaged(start_cluster: StartCluster) -> None:
    cluster = start_cluster({}, nodes="a")
    with SocketClient(cluster["a"].port, "damaged", clean_start=False) as client:
        cluster.redis.client().set("mq:in:damaged", "a value of someone else")
        client.send(Publish("t", b"x", qos=2, packet_id=1))
        packets = []
        while (packet := client.receive()) is not None:
            packets.append(packet)
        assert not [packet for packet in packets if isinstance(packet, Pubrec)]


def test_a_node_with_a_damaged_key_of_its_own_begins_anew(start_cluster: StartCluster) -> None:
    cluster = start_cluster({}, nodes="ab")
    (node,) = [node for node in cluster.redis.client().hkeys("mq:nodes") if node.startswith("a-")]
    with SocketClient(cluster["a"].port, "client") as client:
        cluster.redis.client().delete(f"mq:routes:{node}")
        cluster.redis.client().set(f"mq:routes:{node}", "a value of someone else")
        client.send(Subscribe(1, [("t", 0)]))
        assert not isinstance(client.receive(), Suback)
    cluster["a"].wait_for_log("is ready again")
    assert f"mq:routes:{node}" in cluster["a"].log_text()
    with SocketClient(cluster["a"].port, "client") as client:
        assert client.subscribe(("t", 0)) == [0]
