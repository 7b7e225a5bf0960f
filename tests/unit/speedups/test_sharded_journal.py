"""ShardedJournal: each record is in the block of its shard, with its message once; numbers; full blocks."""

from typing import Any

import pytest

from flockmq._speedups.base.msgpack import unpack
from flockmq._speedups.cluster.commit_block import Block
from flockmq._speedups.cluster.message_codec import decode_message
from flockmq._speedups.cluster.peer import Peer, Way
from flockmq._speedups.cluster.sharded_journal import ShardedBlock, ShardedJournal, shard_of, topic_shard
from flockmq._speedups.routing.router import Router
from flockmq._speedups.session import session_store
from flockmq._speedups.session.session import Session
from flockmq._speedups.session.turn import Turn

SHARDS = 3
FIRST_MESSAGE = 15  # place of the first message among the arguments of a commit
PUSHES, CHANGES, WILLS, TENANTS, NUMBERED, FORGOTTEN = 0, 3, 6, 14, 15, 16  # places in a block
NAMES = [b"client %d" % number for number in range(60)]


class Node:
    """A node with three shards, and sixty persistent sessions elsewhere that have subscribed to `t`."""

    def __init__(self) -> None:
        self.headers: list[tuple[int, int]] = []
        self.journal = ShardedJournal([self.header(shard) for shard in range(SHARDS)], b"node")
        self.turn = Turn(self.journal, lambda block: None)
        self.router = Router(self.turn)
        self.sessions = [self.session(name, number) for number, name in enumerate(NAMES, 1)]
        for session in self.sessions:
            self.router.filters.subscribe(session, b"t", 2)

    def header(self, shard: int) -> Any:
        def header(ahead: int) -> bytes:
            self.headers.append((shard, ahead))
            return b"header"

        return header

    def session(self, name: bytes, number: int) -> Session:
        return Session(self.turn, number, name, persistent=True, shared=True)

    def take(self) -> ShardedBlock:
        return self.journal.take()


def parts_of(block: Block) -> list[Any]:
    """The fields of a block."""
    fields = unpack(block.commit)
    assert isinstance(fields, list)
    return fields


def receivers_of(block: Block) -> list[bytes]:
    """The sessions of the pushes of a block."""
    return [client_id for client_id, *_ in parts_of(block)[PUSHES]]


def test_a_message_is_in_the_block_of_each_shard_once() -> None:
    """Receivers stand in the order of their shards: places of a message are of the block that has named it last."""
    node = Node()
    node.router.publish(b"t", b"payload", 1, publisher=b"p")
    block = node.take()
    assert [shard for shard, _ in block.given] == [0, 1, 2]
    assert not block.ending
    for shard, given in block.given:
        assert sorted(receivers_of(given)) == sorted(name for name in NAMES if shard_of(name, SHARDS) == shard)
        assert len(given.texts) == 1


def test_places_of_one_block_are_not_used_in_another() -> None:
    """The same message object goes into blocks of all shards, turn after turn."""
    node = Node()
    for _ in range(5):
        node.router.publish(b"t", b"payload", 1, publisher=b"p")
        for _, given in node.take().given:
            assert len(given.texts) == 1
            assert {len(push) for push in parts_of(given)[PUSHES]} == {3}


def test_a_will_gives_first_and_is_settled_then() -> None:
    """The receivers in its own shard have it in the block that settles it; those of others have it by number."""
    node = Node()
    shard, epoch = 1, 77
    node.router.publish(b"t", b"gone", 1, publisher=b"mortal", will=shard << 56 | epoch)
    node.journal.part(shard).will_settled(epoch)
    block = node.take()
    number = b"w" + bytes([shard]) + epoch.to_bytes(8, "little")
    assert [where for where, _ in block.given] == [0, 2]
    for where, given in block.given:
        (found, (pushes, shares, delayed, changes)) = parts_of(given)[NUMBERED]
        assert found == number
        assert pushes == list(range(1, len(receivers_of(given)) + 1))
        assert not (shares or delayed or changes)
        assert {shard_of(name, SHARDS) for name in receivers_of(given)} == {where}
    (second,) = block.ending
    assert (second.shard, second.depends) == (shard, 0b101)
    assert list(second.numbers) == [(0, number), (2, number)]
    ending = parts_of(second.take())
    assert ending[WILLS] == [b"settled", epoch, 0]
    assert ending[NUMBERED] == []
    assert {shard_of(name, SHARDS) for name, *_ in ending[PUSHES]} == {shard}


def test_what_has_no_number_is_apart_from_what_has_one() -> None:
    """A session gets one message before, one with a number, and one after: three entries, in this order."""
    node = Node()
    node.router.publish(b"t", b"before", 1, publisher=b"p")
    node.router.publish(b"t", b"gone", 1, publisher=b"mortal", will=1 << 56 | 5)
    node.router.publish(b"t", b"after", 1, publisher=b"p")
    given = dict(node.take().given)[0]
    _, (numbered, *_) = parts_of(given)[NUMBERED]
    found: dict[bytes, list[tuple[bytes, bool]]] = {}
    for place, (name, _, *messages) in enumerate(parts_of(given)[PUSHES], 1):
        payloads = [decode_message(given.texts[message - FIRST_MESSAGE])[1] for message in messages]
        found.setdefault(name, []).extend((payload, place in numbered) for payload in payloads)
    assert found == {
        name: [(b"before", False), (b"gone", True), (b"after", False)] for name in NAMES if not shard_of(name, SHARDS)
    }


def test_messages_keep_their_order_between_publications_with_numbers() -> None:
    """Both blocks of a shard have the sessions: the place of one in the second block is not its place in the first."""
    node, shard = Node(), 0
    names = [name for name in NAMES if shard_of(name, SHARDS) == shard]
    sent = []
    for number, settling in enumerate((None, shard, None, 1, None, shard, None, shard, None, 2, None)):
        payload = b"%d" % number
        will = 0 if settling is None else settling << 56 | number
        node.sessions.append(node.session(b"more %d" % number, 100 + number))
        node.router.filters.subscribe(node.sessions[-1], b"t", 2)  # the places in both blocks differ
        node.router.publish(b"t", payload, 1, publisher=b"p", will=will)
        if settling != shard:
            sent.append(payload)
    given = dict(node.take().given)[shard]
    found: dict[bytes, list[bytes]] = {}
    for name, _, *messages in parts_of(given)[PUSHES]:
        payloads = (decode_message(given.texts[message - FIRST_MESSAGE])[1] for message in messages)
        found.setdefault(name, []).extend(payloads)
    assert {name: found[name] for name in names} == dict.fromkeys(names, sent)


def test_a_retained_message_is_in_the_shard_of_its_topic_name() -> None:
    node = Node()
    for number in range(20):
        node.router.publish(b"kept/%d" % number, b"x", 1, True, publisher=b"p")
    found = {}
    for shard, given in node.take().given:
        *records, mark = unpack(parts_of(given)[CHANGES])
        assert mark[0] == b"mark"
        found |= {topic: shard for _, topic, _ in records}
    assert found == {b"kept/%d" % number: topic_shard(b"kept/%d" % number, SHARDS) for number in range(20)}


def test_a_number_is_forgotten_with_the_next_block_of_its_shard() -> None:
    node = Node()
    node.journal.forget(2, b"q1")
    node.router.publish(b"t", b"x", 1, publisher=b"p")
    assert [parts_of(given)[FORGOTTEN] for _, given in node.take().given] == [[], [], [b"q1"]]
    node.router.publish(b"t", b"x", 1, publisher=b"p")
    assert [parts_of(given)[FORGOTTEN] for _, given in node.take().given] == [[], [], []]


def test_a_block_for_very_many_sessions_is_cut() -> None:
    """The next one of its shard has a later number, which the header of its batch has to have."""
    node = Node()
    node.journal.part(1).limit_pushes(10)
    node.router.publish(b"t", b"x", 1, publisher=b"p")
    counts = [len(receivers_of(given)) for shard, given in node.take().given if shard == 1]
    mine = sum(shard_of(name, SHARDS) == 1 for name in NAMES)
    assert counts == [10] * (mine // 10) + [mine % 10] * (mine % 10 > 0)


def test_the_batch_of_a_block_that_was_cut_has_the_number_with_which_it_is_sent() -> None:
    """Second blocks of earlier turns are sent while the turn goes on: other nodes had skipped the batch."""
    sent = 7
    journal = ShardedJournal([lambda ahead: b"header %d" % (sent + ahead)] * SHARDS, b"node")
    turn = Turn(journal, lambda block: None)
    router = Router(turn)
    sessions = [Session(turn, number, name, persistent=True, shared=True) for number, name in enumerate(NAMES, 1)]
    for session in sessions:
        router.filters.subscribe(session, b"t", 2)
    peer = Peer(turn, 1, b"other", lambda packets: True)
    router.filters.subscribe(peer, b"t", Way.LOGGED)
    for shard in range(SHARDS):
        journal.part(shard).limit_pushes(1)
    router.publish(b"t", b"x", 1, publisher=b"p")
    router.publish(b"t", b"y", 1, publisher=b"p")
    sent = 9
    numbers: dict[int, int] = {}
    batches = 0
    for shard, given in journal.take().given:
        number = sent + numbers.get(shard, 0)
        numbers[shard] = numbers.get(shard, 0) + 1
        if given.batch:
            batches += 1
            assert given.batch.startswith(b"header %d" % number)
            assert parts_of(given)[1] == b"header %d" % number
    assert batches == 2


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_message_that_awaits_pubrel_has_a_number(name: bytes) -> None:
    """It stands beside the message in Redis, so that another node knows it."""
    node = Node()
    numbers = set()
    for packet_id in (1, 2):
        session = next(each for each in node.sessions if each.client_id == name)
        message = session_store.Restored(0, 2, False, b"t", b"x", b"", 0)
        session_store.restore_awaiting(session, packet_id, message)
        ((shard, given),) = node.take().given
        assert shard == shard_of(name, SHARDS) == session.shard
        ((client_id, _, found, _, progress, number),) = parts_of(given)[4]
        assert (client_id, found, progress) == (name, packet_id, 0)
        numbers.add(number)
    assert len(numbers) == 2
    assert all(len(number) == 8 for number in numbers)


def test_the_limit_of_a_tenant_is_the_same_for_all_shards_together() -> None:
    """Redis compares it with the bytes of the shard, so the bytes of the others are taken off."""
    node = Node()
    node.turn.tenants.set_limits(lambda prefix: {"max_queued_bytes": 1000})
    tenant = node.turn.tenants.at(b"$tenant/acme/")
    tenant.queued_by_shard = {0: 100, 1: 200, 2: 900}
    sessions = [node.session(b"$tenant/acme/c%d" % number, number) for number in range(100, 130)]
    for session in sessions:
        node.router.filters.subscribe(session, b"$tenant/acme/t", 1)
    node.router.publish(b"$tenant/acme/t", b"x", 1)
    found = {shard: parts_of(given)[TENANTS] for shard, given in node.take().given}
    assert found == {0: [b"$tenant/acme/", 1], 1: [b"$tenant/acme/", 1], 2: [b"$tenant/acme/", 700]}


def test_all_shards_have_the_clock_of_the_turn() -> None:
    """From the first moment on: else the clock of a cluster would seem to step."""
    node = Node()
    for shard in range(SHARDS):
        node.journal.part(shard).set_time(1000 + shard)
    node.turn.advance(2)
    assert [node.journal.part(shard).time for shard in range(SHARDS)] == [1500, 1501, 1502]
    fresh = ShardedJournal([node.header(0)], b"node")
    Turn(fresh, lambda block: None)
    assert fresh.part(0).time == 250  # the first tick
