"""How a node that comes back notices that Redis lacks what it has seen: counts of calls, ends of queues and groups."""

import pytest

from flockmq._speedups.base.msgpack import pack
from flockmq._speedups.cluster.message_codec import encode_message
from flockmq.broker.core.will import Will
from flockmq.cluster.redis.connector import function_library
from flockmq.cluster.sessions.wills import encode_will
from tests.harness.function_caller import Caller, counted_size
from tests.harness.stored_sessions import change_session, stored_queue, stored_session


def lost(caller: Caller, node: bytes, expected: int, incarnation: int = 0) -> list[bytes]:
    """The sessions of which Redis lacks messages, of session `a` alone, whose next number at the node is this."""
    found: list[bytes] = caller.call("lost", node, [b"a", incarnation or caller.incarnation(b"a"), expected])
    return found


def test_claims_and_acknowledgements_are_counted(caller: Caller) -> None:
    """They have no separate numbers; calls that take no effect do not count."""
    assert caller.redis.hget("mq:node:n1", "calls") == b"3"
    caller.call("acks", b"n1", [[], [[b"a", caller.incarnation(b"a"), [1], [], b""]]], b"")
    assert caller.redis.hget("mq:node:n1", "calls") == b"4"
    assert caller.call("acks", b"nobody", [[], []], b"") == [b"gone"]
    assert not caller.redis.exists("mq:node:nobody")
    assert caller.redis.hget("mq:node:n2", "calls") is None


def test_a_damaged_count_keeps_no_acknowledgement_back(caller: Caller) -> None:
    caller.commit(pushes=caller.push(b"a"))
    caller.redis.hset("mq:node:n1", "calls", "damaged")
    assert caller.call("acks", b"n1", [[], [[b"a", caller.incarnation(b"a"), [1], [], b""]]], b"") == [[], [], [], []]
    assert len(stored_queue(caller.redis, "a")) == 0


def test_numbers_that_are_used_again_are_lost(caller: Caller) -> None:
    """Two numbers that the node has, and that this process of Redis has given to other messages."""
    caller.redis.function_load(function_library(), replace=True)  # its variables are new, as in a new process
    caller.commit(pushes=caller.push(b"a", b"a"))
    assert lost(caller, b"n2", 4) == [b"a"]
    assert lost(caller, b"n2", 3) == [b"a"]
    assert lost(caller, b"n2", 1) == []
    assert lost(caller, b"n2", 3, caller.incarnation(b"a") + 1) == []
    assert lost(caller, b"n2", 3, caller.incarnation(b"b")) == []


def test_a_node_that_has_come_back_has_the_numbers_of_this_process(caller: Caller) -> None:
    caller.redis.function_load(function_library(), replace=True)
    caller.commit(pushes=caller.push(b"a", b"a"))
    caller.call("confirm", b"n2")  # over a new link, before it has compared
    assert lost(caller, b"n2", 3) == [b"a"]
    caller.call("beat", b"n2", 100, [])
    assert lost(caller, b"n2", 3) == []
    assert lost(caller, b"n2", 4) == [b"a"]
    assert lost(caller, b"n1", 3) == [b"a"]


def test_numbers_are_compared_for_two_minutes_by_the_clock_of_the_cluster(caller: Caller) -> None:
    """A step of the wall clock, as after the start of a machine, does not end that time."""
    caller.redis.function_load(function_library(), replace=True)
    caller.commit(pushes=caller.push(b"a", b"a"))
    time = float(caller.redis.hget("mq:clock", "t") or 0)
    for seconds, found in ((110, [b"a"]), (130, [])):
        caller.redis.hset("mq:clock", "t", time + seconds * 1000)
        assert lost(caller, b"n2", 3) == found


def test_another_cluster_in_this_redis_has_its_own_two_minutes(caller: Caller) -> None:
    """Its keys have another prefix. It began earlier, or its clock makes a step."""
    caller.redis.function_load(function_library(), replace=True)
    caller.commit(pushes=caller.push(b"a", b"a"))
    assert lost(caller, b"n2", 3) == [b"a"]
    caller.redis.fcall("flockmq_join", 0, "other:", b"n1", 1, pack([]), "other:", "")
    caller.redis.fcall("flockmq_beat", 0, "other:", b"n1", 100, pack([]))
    for seconds in (0, 130):
        time = float(caller.redis.hget("other:clock", "t") or 0)
        caller.redis.hset("other:clock", "t", time + seconds * 1000)
        caller.redis.fcall("flockmq_lost_places", 0, "other:", b"n2", pack([]))
    assert lost(caller, b"n2", 3) == [b"a"]


def test_acknowledged_messages_are_not_lost(caller: Caller) -> None:
    """The queue is empty, and ends where it ended."""
    caller.commit(pushes=caller.push(b"a", b"a"))
    caller.call("acks", b"n1", [[], [[b"a", caller.incarnation(b"a"), [1, 2], [], b""]]], b"")
    caller.redis.function_load(function_library(), replace=True)
    assert lost(caller, b"n2", 3) == []
    caller.commit(pushes=caller.push(b"a"))
    assert lost(caller, b"n2", 3) == []
    assert lost(caller, b"n2", 4) == [b"a"]


def test_places_of_a_group_that_are_used_again_are_lost(caller: Caller) -> None:
    group = b"$share/g/t"
    shares: list[object] = [group, [1]]

    def lost_places(node: bytes, place: int) -> list[bytes]:
        [found] = caller.call("lost_places", node, [group, place])
        return found

    caller.call("beat", b"n2", 100, [])
    caller.call("declare_group", b"n1", group, "{}")
    caller.commit(shares=shares)
    assert lost_places(b"n2", 1) == []
    assert lost_places(b"n2", 2) == [group]
    caller.redis.function_load(function_library(), replace=True)
    caller.commit(shares=shares)
    assert lost_places(b"n2", 2) == [group]
    caller.call("beat", b"n2", 100, [])
    assert lost_places(b"n2", 2) == []
    assert lost_places(b"n2", 3) == [group]
    assert lost_places(b"n1", 1) == []  # nothing is lost: from now on the node has the places of this process
    assert lost_places(b"n1", 2) == []
    assert lost_places(b"n1", 3) == [group]


LOST, ALSO_LOST = (encode_message(b"t", payload, 2, False) for payload in (b"lost", b"also lost"))
NOTHING = encode_message(b"", b"", 2, False)


class Queue:
    """The queue of session `a`, whose client is at `n2`; a process of Redis begins that lacks all from number 2 on.

    Another node has put two messages there since.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.epoch = caller.claimed(b"n2", b"a", 1, 5, b"", 100, b"", 0, 1000, 0)[0]
        caller.commit(pushes=caller.push(b"a"))
        caller.redis.function_load(function_library(), replace=True)
        caller.commit(messages=[b"other", b"another"], pushes=[[b"a", caller.incarnation(b"a"), 1, 2]])

    def restore(self, *lost: tuple[int, bytes], node: bytes = b"n2", incarnation: int = 0) -> int:
        session = [b"a", incarnation or self.caller.incarnation(b"a"), list(lost)]
        return int(self.caller.call("restore", node, [session]))

    @property
    def entries(self) -> list[bytes]:
        return list(stored_queue(self.caller.redis, "a"))

    @property
    def marks(self) -> dict[bytes, bytes]:
        return dict(self.caller.redis.hgetall("mq:st:a"))

    def check(self) -> None:
        """The counts fit the queue."""
        session = stored_session(self.caller.redis, "a")
        assert session.queued_bytes == counted_size(self.entries)
        assert session.marks == len(self.marks)
        assert all(session.head <= int(number) < session.head + len(self.entries) for number in self.marks)


@pytest.fixture
def queue(caller: Caller) -> Queue:
    return Queue(caller)


def test_what_is_lost_gets_its_numbers_again(queue: Queue) -> None:
    """Messages that others have put there move behind it; numbers between are done, those with PUBREC are marked."""
    early = queue.entries[0]
    assert queue.restore((1, b"known"), (3, LOST), (5, b""), (6, ALSO_LOST)) == 3
    assert queue.entries == [early, NOTHING, LOST, NOTHING, NOTHING, ALSO_LOST, b"other", b"another"]
    assert queue.marks == {b"2": b"d", b"4": b"d", b"5": b"r"}
    assert stored_session(queue.caller.redis, "a").sent == 7
    queue.check()


def test_the_call_may_be_repeated(queue: Queue) -> None:
    for wanted in (2, 0, 0):
        assert queue.restore((2, LOST), (3, b"")) == wanted
        assert queue.entries[1:] == [LOST, NOTHING, b"other", b"another"]
    queue.check()


def test_what_is_done_leaves_a_queue_that_begins_with_it(queue: Queue) -> None:
    queue.caller.call("acks", b"n2", [[], [[b"a", queue.caller.incarnation(b"a"), [1], [], b""]]], b"")
    assert queue.restore((4, LOST)) == 1
    assert queue.entries == [LOST, b"other", b"another"]
    assert stored_session(queue.caller.redis, "a").head == 4
    queue.check()


def test_what_has_gone_back_to_its_group_does_not_move(queue: Queue) -> None:
    queue.caller.redis.hset("mq:st:a", 2, "d")
    change_session(queue.caller.redis, "a", marks=1, done=1)
    assert queue.restore((2, LOST)) == 1
    assert queue.entries[1:] == [LOST, b"another"]
    queue.check()


def test_a_queue_that_has_grown_shorter_than_what_is_lost(queue: Queue) -> None:
    """The limits have dropped the oldest entries, up to an entry that has a used number."""
    change_session(queue.caller.redis, "a", head=3, entries=[b"another"])
    assert queue.restore((2, LOST)) == 1
    assert queue.entries == [LOST, b"another"]
    assert stored_session(queue.caller.redis, "a").head == 2
    queue.check()


def test_the_next_node_waits_so_nothing_was_sent(queue: Queue) -> None:
    queue.caller.claimed(b"n1", b"a", 1, 5, b"", 100, b"", 0, 1000, 0)
    assert queue.restore((2, LOST)) == 1
    assert queue.entries[1:] == [LOST, b"other", b"another"]


@pytest.mark.parametrize("why", ["released", "dead", "another session", "nothing lost", "too much"])
def test_what_must_not_be_restored(queue: Queue, why: str) -> None:
    caller, lost, more = queue.caller, (2, LOST), {}
    if why == "released":
        caller.send(1, b"n2", releases=[[b"a", queue.epoch, 0]])
    elif why == "dead":
        caller.call("bury", b"n1", b"n2", caller.redis.hget("mq:nodes", "n2"), 0)
    elif why == "another session":
        more = {"incarnation": caller.incarnation(b"a") + 1}
    elif why == "nothing lost":
        caller.call("lost_places", b"n2", [])  # the node has compared
    else:
        lost = (65_538, LOST)
    before = caller.dump()
    assert queue.restore(lost, **more) == 0
    assert caller.dump() == before


def test_a_node_that_has_missed_a_process_of_redis_cannot_compare(caller: Caller) -> None:
    """The notes of the process between are gone: numbers that it has lost look as if they were there."""
    caller.call("beat", b"n2", 100, [])
    for process in range(2):
        assert caller.call("lost_places", b"n2", []) == [[]]
        caller.redis.function_load(function_library(), replace=True)
        caller.call("beat", b"n1", 100, [])
        caller.commit(pushes=caller.push(b"a"))
        assert caller.redis.get("mq:starts") == b"%d" % (process + 2)
    assert lost(caller, b"n2", 2) == []
    unfinished = pack([[b"a", caller.incarnation(b"a"), [[1, LOST]]]])
    assert caller.call("restore", b"n2", unfinished) == 0
    assert caller.call("lost_places", b"n1", []) == [[]]
    assert caller.call("lost_places", b"n2", []) == [b"missed"]
    caller.call("beat", b"n2", 100, [])
    assert caller.call("lost_places", b"n2", []) == [[]]


def test_a_process_that_follows_another_ends_no_session_at_once(caller: Caller) -> None:
    """The claims of clients that are connected may be lost: they come back, and claim them again."""
    will = encode_will(b"b", Will(b"t", b"x", 1, False, delay=1))
    epoch = caller.claimed(b"n1", b"b", 1, 5, will, 100, b"", 0, 1, 0)[0]
    caller.commit(releases=[[b"b", epoch, 0, 2, 2]])
    caller.call("beat", b"n1", 0, [])
    time = float(caller.redis.hget("mq:clock", "t") or 0)
    caller.redis.function_load(function_library(), replace=True)

    def beat(seconds: float) -> int:
        """A heartbeat so many seconds after the release. Returns whether something is due."""
        caller.redis.hset("mq:clock", "t", f"{time + seconds * 1000:.0f}")
        return int(caller.call("beat", b"n1", 0, [])[2])

    assert beat(5) == 0
    assert caller.call("due", b"n1", 100) == [0, []]
    assert beat(14) == 0
    assert caller.call("expire", b"n1", 0, 100) == 0
    assert beat(16) == 1
    assert caller.call("due", b"n1", 100) == [1, [epoch, encode_will(b"b", Will(b"t", b"x", 1, False))]]


def test_a_process_that_finds_no_session_ends_new_ones_in_time(caller: Caller) -> None:
    """Nodes that start at the same time may load the functions one after the other."""
    caller.redis.delete("mq:sessions")
    caller.redis.function_load(function_library(), replace=True)
    caller.call("beat", b"n1", 0, [])
    epoch = caller.claimed(b"n1", b"d", 1, 5, b"", 100, b"", 0, 1, 0)[0]
    caller.commit(releases=[[b"d", epoch, 0, 1]])
    caller.redis.hset("mq:clock", "t", f"{float(caller.redis.hget('mq:clock', 't') or 0) + 2000:.0f}")
    assert caller.call("due", b"n1", 100) == [1, []]


def test_a_damaged_count_of_processes_stops_no_node(caller: Caller) -> None:
    caller.redis.delete("mq:starts")
    caller.redis.hset("mq:starts", "damaged", 1)
    caller.redis.function_load(function_library(), replace=True)
    assert caller.call("beat", b"n1", 100, []) != [b"gone"]
    assert caller.call("lost_places", b"n1", []) == [[]]
