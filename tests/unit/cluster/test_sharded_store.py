"""ShardedStore: blocks go to their shards, those that end publications last, and waiters name their shards."""

from collections import deque
from typing import Any

from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

from flockmq._speedups.cluster.sharded_journal import ShardedJournal
from flockmq._speedups.session.turn import Turn
from flockmq.broker.core.data_plane import MAX_UNCOMMITTED_BYTES
from flockmq.cluster.sharding.store import ShardedStore

A, B, C = 1, 2, 4  # shards 0, 1, 2, as bits
SHARDS = 3


class Stored:
    """A store of one shard that stores when it is told to."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self.left = 0  # blocks that are not stored
        self.confirm: Any = None

    def start(self, confirm: Any, call: Any) -> None:
        self.confirm = confirm

    def commit(self, block: Any) -> None:
        self.blocks.append(block)
        self.left += 1

    def store(self, blocks: int = 1) -> None:
        blocks = min(blocks, self.left)
        self.left -= blocks
        if blocks:
            self.confirm(blocks)


class Node:
    """A node with three shards, whose turns give to shards, and end publications."""

    def __init__(self) -> None:
        self.journal = ShardedJournal([lambda ahead: b"" for _ in range(SHARDS)], b"node")
        self.shards = [Stored() for _ in range(SHARDS)]
        self.store = ShardedStore(self.shards, self.journal)  # type: ignore[arg-type]
        self.turn = Turn(self.journal, self.store.commit)  # type: ignore[arg-type]
        self.store.attach(self.turn, 2)
        self.confirmed: list[int] = []
        self.store.start(self.confirmed.append, print)
        self.done: list[str] = []
        self._epoch = 0

    def give(self, shards: int) -> None:
        """Record something in each of these shards."""
        for shard in range(SHARDS):
            if shards >> shard & 1:
                self.journal.part(shard).change(("something",))

    def end(self, shard: int) -> None:
        """Record the end of a will in a shard, which gave to no other."""
        self._epoch += 1
        self.journal.part(shard).will_settled(self._epoch)

    def then(self, name: str, shards: int) -> None:
        """Wait for these shards."""
        self.turn.after_commit(lambda: self.done.append(name), shards)

    def take(self) -> list[str]:
        done, self.done = self.done, []
        return done


def test_a_waiter_waits_for_the_shards_that_it_names() -> None:
    node = Node()
    node.give(A | B)
    node.then("a", A)
    node.then("b", B)
    node.then("both", A | B)
    node.then("c", C)
    node.turn.seal()
    assert node.take() == ["c"]
    node.shards[1].store()
    assert node.take() == ["b"]
    assert node.confirmed == []
    node.shards[0].store()
    assert node.take() == ["a", "both"]
    assert node.confirmed == [1]


def test_a_shard_that_is_away_holds_up_no_other() -> None:
    """However many turns there are; and all is there when it is back."""
    node = Node()
    for number in range(100):
        node.give(A | B if number % 2 else B)
        node.then(f"b{number}", B)
        if number % 2:
            node.then(f"a{number}", A)
        node.turn.seal()
        node.shards[1].store()
        assert node.take() == [f"b{number}"]
    node.shards[0].store(50)
    assert node.take() == [f"a{number}" for number in range(1, 100, 2)]
    assert sum(node.confirmed) == 100


def test_what_waits_for_all_waits_for_the_turns_before() -> None:
    node = Node()
    node.give(A)
    node.turn.seal()
    node.give(B)
    node.then("all", -1 & 0xFFFF_FFFF)
    node.turn.seal()
    node.shards[1].store()
    assert node.take() == []
    node.shards[0].store()
    assert node.take() == ["all"]


def test_what_ends_alone_is_stored_at_once() -> None:
    """A will that is discarded has given nothing: it waits for no shard but its own."""
    node = Node()
    node.give(A)
    node.end(1)
    node.then("b", B)
    node.turn.seal()
    assert len(node.shards[1].blocks) == 1
    node.shards[1].store()
    assert node.take() == ["b"]


def test_a_callback_may_seal_the_next_turn() -> None:
    node = Node()
    node.give(A)

    def more() -> None:
        node.give(A | B)
        node.then("more", A | B)
        node.turn.seal()

    node.turn.after_commit(more, A)
    node.turn.seal()
    node.shards[0].store()
    node.shards[1].store()
    assert node.take() == []
    node.shards[0].store()
    assert node.take() == ["more"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("act"), st.integers(0, 3), st.integers(1, 7)),
        st.tuples(st.just("seal"), st.just(0), st.just(0)),
        st.tuples(st.just("store"), st.integers(0, 2), st.integers(1, 3)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given_by(STEPS)
def test_each_connection_is_answered_in_its_order(steps: list[tuple[str, int, int]]) -> None:
    """The model is a list for each of four connections. An answer waits for its shards, and for the earlier answers.

    It comes as soon as the shards that it waits for have stored their blocks, whatever the others do.
    """
    node = Node()
    waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(4)]  # shards, number of the turn
    blocks: list[list[int]] = [[] for _ in range(SHARDS)]  # turns of the blocks of each shard that are not stored
    answers: list[tuple[int, int]] = []
    turn, written, count = 1, 0, 0

    def expect() -> None:
        for connection, queue in enumerate(waiting):
            while queue and not any(shards_of(queue[0][0], queue[0][1])):
                queue.popleft()
                expected.append(connection)

    def shards_of(shards: int, number: int) -> list[int]:
        return [each for shard in range(SHARDS) if shards >> shard & 1 for each in blocks[shard] if each <= number] + (
            [1] if number == turn and written else []
        )

    for kind, which, argument in steps:
        expected: list[int] = []
        if kind == "act":
            node.give(argument)
            written |= argument
            before = [shards for shards, _ in waiting[which]]
            shards = argument
            for each in before:
                shards |= each
            count += 1
            node.turn.after_commit(lambda which=which, count=count: answers.append((which, count)), shards)
            waiting[which].append((shards, turn))
        elif kind == "seal" and written:
            for shard in range(SHARDS):
                if written >> shard & 1:
                    blocks[shard].append(turn)
            node.turn.seal()
            turn, written = turn + 1, 0
        elif kind == "store":
            del blocks[which][:argument]
            node.shards[which].store(argument)
        expect()
        assert sorted(each for each, _ in answers) == sorted(expected)
        for connection in range(4):
            mine = [number for each, number in answers if each == connection]
            assert mine == sorted(mine)
        answers.clear()


def test_the_bytes_of_a_shard_are_its_own() -> None:
    """A shard that is away for hours does not use up the room of the others."""
    node = Node()
    node.give(A)
    node.turn.seal()
    waiting = node.turn.uncommitted
    assert 0 < waiting < MAX_UNCOMMITTED_BYTES
    node.give(B)
    node.turn.seal()
    node.shards[1].store()
    assert node.turn.uncommitted == waiting
    node.shards[0].store()
    assert node.turn.uncommitted == 0
