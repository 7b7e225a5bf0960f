"""Numbers of publications in Redis: what one block has given another one skips, until the number is forgotten (X4)."""

from typing import Any

import pytest
import redis

from flockmq._speedups.base.msgpack import pack, unpack
from tests.harness.function_caller import Caller
from tests.harness.stored_sessions import stored_queue

KNOWN = 5  # place in the reply to a commit, without its outcome
FIRST = 15  # place of the first message among the arguments of a commit


def give(caller: Caller, number: bytes, *cids: bytes, node: bytes = b"n1", **parts: Any) -> Any:
    """A commit that gives the message to these sessions, under a number."""
    places = list(range(1, len(cids) + 1))
    numbered = [number, [places, parts.pop("of_groups", []), parts.pop("later", []), parts.pop("changes_of", [])]]
    seq = int(caller.redis.hget(f"mq:node:{node.decode()}", "seq") or 0) + 1
    return caller.send(seq, node, pushes=caller.push(*cids), numbered=numbered, **parts)


def queued(caller: Caller, cid: bytes) -> int:
    return len(stored_queue(caller.redis, cid))


def test_a_shard_gives_a_publication_once(caller: Caller) -> None:
    """The second node has another list of receivers: a session that has subscribed since gets nothing either."""
    first = give(caller, b"q1", b"a", b"b")
    assert first[KNOWN] == []
    again = give(caller, b"q1", b"a", b"b", b"c", node=b"n2")
    assert again[KNOWN] == [b"q1"]
    assert again[3] == [0, 1, 0, 1, 0, 1]
    assert [queued(caller, cid) for cid in (b"a", b"b", b"c")] == [1, 1, 0]
    assert give(caller, b"q2", b"c")[KNOWN] == []
    assert queued(caller, b"c") == 1


def test_what_has_no_number_is_given_all_the_same(caller: Caller) -> None:
    give(caller, b"q1", b"a")
    seq = caller.seq + 2
    reply = caller.send(seq, pushes=[*caller.push(b"a"), *caller.push(b"b")], numbered=[b"q1", [[1], [], [], []]])
    assert reply[KNOWN] == [b"q1"]
    assert [queued(caller, cid) for cid in (b"a", b"b")] == [1, 1]


def test_a_retained_message_of_a_known_publication_changes_nothing(caller: Caller) -> None:
    """Another one may have replaced it since. The node that repeats it learns which of its changes do not count."""

    def changes(value: bytes) -> bytes:
        return pack([["retained", b"kept", value], ["mark", 7]])

    assert give(caller, b"q1", changes=changes(b"1"), changes_of=[1])[0] == 1
    caller.send(caller.seq + 2, changes=changes(b"2"))
    again = give(caller, b"q1", changes=changes(b"1"), changes_of=[1], node=b"n2")
    assert (again[0], again[KNOWN]) == (0, [b"q1"])
    assert caller.redis.hget("mq:retained", "kept") == b"2"


def test_groups_and_delayed_messages_are_given_once(caller: Caller) -> None:
    caller.send(caller.seq + 1, changes=pack([["joined", b"$share/g/t", b"c:elsewhere", b""], ["mark", 1]]))
    for node in (b"n1", b"n2"):
        give(caller, b"w1", node=node, of_groups=[b"$share/g/t", [FIRST]], later=[FIRST, 1000, b"p"])
    assert caller.call("waiting", pack([b"$share/g/t"]))[0] == 1
    assert caller.redis.zcard("mq:later") == 1


def test_messages_for_a_group_with_and_without_a_number_are_one_share(caller: Caller) -> None:
    """A group that is twice in a call would use its places twice."""
    caller.send(caller.seq + 1, changes=pack([["joined", b"$share/g/t", b"c:elsewhere", b""], ["mark", 1]]))
    give(caller, b"q1", of_groups=[b"$share/g/t", [FIRST]], shares=[b"$share/g/t", [1]])
    assert caller.call("waiting", pack([b"$share/g/t"]))[0] == 2


def test_a_number_is_forgotten_by_the_node_that_has_given_it(caller: Caller) -> None:
    give(caller, b"q1", b"a")
    assert caller.redis.smembers("mq:once:n1") == {b"q1"}
    caller.send(caller.seq + 2, forgotten=[b"q1"], pushes=caller.push(b"b"))
    assert not caller.redis.exists("mq:once", "mq:once:n1")


def test_numbers_of_a_node_that_leaves_go_with_it(caller: Caller) -> None:
    give(caller, b"q1", b"a", node=b"n2")
    caller.call("leave", b"n2")
    assert not caller.redis.exists("mq:once", "mq:once:n2", "mq:once:orphans")


def test_numbers_of_a_dead_node_stay_as_orphans(caller: Caller) -> None:
    give(caller, b"q1", b"a", node=b"n2")
    assert caller.call("bury", b"n1", b"n2", b"", 0) == [[]]
    assert caller.call("orphans", 10) == [b"q1"]
    assert give(caller, b"q1", b"a")[KNOWN] == [b"q1"]
    caller.call("forget", pack([b"q1"]))
    assert not caller.redis.exists("mq:once", "mq:once:orphans")


def test_a_node_that_repeats_a_publication_of_a_dead_one_forgets_its_number(caller: Caller) -> None:
    give(caller, b"q1", b"a", node=b"n2")
    caller.call("bury", b"n1", b"n2", b"", 0)
    give(caller, b"q1", b"a")
    caller.send(caller.seq + 2, forgotten=[b"q1"])
    assert not caller.redis.exists("mq:once", "mq:once:orphans")


def test_a_node_is_dead_in_any_case_if_it_is_dead_elsewhere(caller: Caller) -> None:
    """Its heartbeats do not count then (X1); a second call has no effect."""
    assert caller.call("bury", b"n1", b"n2", b"999", 0) == [b"lives"]
    assert caller.call("bury", b"n1", b"n2", b"", 0) == [[]]
    assert caller.call("bury", b"n1", b"n2", b"", 0) == [b"lives"]


@pytest.mark.parametrize("released", [False, True])
def test_a_message_that_awaits_pubrel_is_needed(caller: Caller, released: bool) -> None:
    number = (77).to_bytes(8, "little")
    caller.commit(awaiting=[[b"a", caller.incarnation(b"a"), 5, 1, 0, number]])
    assert caller.redis.hget("mq:in:a", "5")[:9] == b"\x70" + number
    if released:
        caller.commit(released=[[b"a", caller.incarnation(b"a"), 5]])
    wanted = [b"q" + number + b"a", b"q" + (78).to_bytes(8, "little") + b"a", b"q" + number + b"b"]
    assert caller.call("needed", pack(wanted)) == [int(not released), 0, 0]


def test_a_will_is_needed_until_it_is_settled(caller: Caller) -> None:
    numbers = pack([b"w\x00" + (5).to_bytes(8, "little")])
    assert caller.call("needed", numbers) == [0]
    for key, field in (("mq:wills:n2", "5"), ("mq:delayed:wills", "5"), ("mq:later:messages", f"{5:016}")):
        caller.redis.hset(key, field, b"will")
        assert caller.call("needed", numbers) == [1]
        caller.redis.delete(key)
    assert unpack(numbers)


@pytest.mark.parametrize("wanted", [b"2:1", b"3:0", b""])
def test_a_server_has_the_shards_that_its_first_node_has_named(caller: Caller, wanted: bytes) -> None:
    """`mq:` here is the prefix of the first shard, at another server."""
    caller.redis.flushall()
    assert caller.call("join", b"n5", 1, [], b"mq:", b"2:0")[0] == 0
    assert caller.call("join", b"n6", 1, [], b"mq:", b"2:0")[0] == 0
    assert caller.call("join", b"n7", 1, [], b"mq:", wanted) == [b"shards", b"2:0"]


def test_a_cluster_of_one_shard_is_not_divided(caller: Caller) -> None:
    assert caller.call("join", b"n5", 1, [], b"mq:", b"2:0") == [b"shards", b""]


def test_very_many_numbers_are_forgotten_at_once(caller: Caller) -> None:
    """More than Lua's stack has room for: an idle shard gets them all with its next block."""
    numbers = [b"q%d" % number for number in range(20_000)]
    for start in range(0, len(numbers), 1000):
        some = dict.fromkeys(numbers[start : start + 1000], b"n1")
        caller.redis.hset("mq:once", mapping=some)
        caller.redis.sadd("mq:once:n1", *some)
    caller.commit(forgotten=numbers, pushes=caller.push(b"a"))
    assert not caller.redis.exists("mq:once", "mq:once:n1")
    assert queued(caller, b"a") == 1


def test_a_block_is_refused_as_a_whole_if_the_numbers_are_damaged(caller: Caller) -> None:
    caller.redis.set("mq:once", "damaged")
    with pytest.raises(redis.ResponseError, match="DAMAGED mq:once"):
        caller.commit(forgotten=[b"q1"], pushes=caller.push(b"a"))
    assert queued(caller, b"a") == 0
