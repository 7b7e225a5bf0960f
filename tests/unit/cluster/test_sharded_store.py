"""ShardedStore: the blocks of a turn go to their shards, those that end publications last, and turns count in order."""

from typing import Any

from flockmq.cluster.sharding.store import ShardedStore


class Stored:
    """A store of one shard that stores when it is told to."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self.confirm: Any = None

    def start(self, confirm: Any, call: Any) -> None:
        self.confirm = confirm

    def commit(self, block: Any) -> None:
        self.blocks.append(block)


class Ending:
    """A journal whose block is taken when all that is given is stored."""

    def __init__(self, block: str) -> None:
        self.block = block

    def take(self) -> str:
        return self.block


class Block:
    """What a turn has for the shards."""

    def __init__(
        self, given: list[tuple[int, str]], ending: tuple[tuple[int, str], ...] = (), number: bytes = b""
    ) -> None:
        self.given = given
        self.ending = [(shard, Ending(block)) for shard, block in ending]
        self.numbers = [(shard, number) for shard, _ in given] if number else []


class Node:
    """A node with two shards."""

    def __init__(self) -> None:
        self.shards = [Stored(), Stored()]
        self.confirmed: list[int] = []
        self.forgotten: list[tuple[int, bytes]] = []
        self.store = ShardedStore(self.shards, self)  # type: ignore[arg-type]
        self.store.start(self.confirmed.append, print)

    def forget(self, shard: int, number: bytes) -> None:
        self.forgotten.append((shard, number))

    def commit(self, *arguments: Any) -> None:
        self.store.commit(Block(*arguments))


def test_what_ends_is_taken_when_all_shards_have_what_is_given() -> None:
    node = Node()
    node.commit([(0, "a"), (1, "b")], ((0, "end"),), b"q1")
    first, second = node.shards
    assert (first.blocks, second.blocks) == (["a"], ["b"])
    first.confirm(1)
    assert first.blocks == ["a"]
    second.confirm(1)
    assert first.blocks == ["a", "end"]
    assert node.confirmed == []
    first.confirm(1)
    assert node.confirmed == [1]
    assert node.forgotten == [(0, b"q1"), (1, b"q1")]


def test_turns_count_in_their_order() -> None:
    node = Node()
    node.commit([(0, "a")])
    node.commit([(1, "b")])
    node.commit([(1, "c")])
    node.shards[1].confirm(2)
    assert node.confirmed == []
    node.shards[0].confirm(1)
    assert node.confirmed == [3]


def test_what_ends_keeps_the_order_of_the_turns() -> None:
    """The messages of a publisher are released in the order in which it has sent them."""
    node = Node()
    node.commit([(1, "a")], ((0, "end of a"),))
    node.commit([], ((0, "end of b"),))
    assert node.shards[0].blocks == []
    node.shards[1].confirm(1)
    assert node.shards[0].blocks == ["end of a", "end of b"]
    node.shards[0].confirm(2)
    assert node.confirmed == [2]


def test_a_turn_that_gives_nothing_ends_at_once() -> None:
    node = Node()
    node.commit([], ((1, "end"),))
    assert node.shards[1].blocks == ["end"]
    node.shards[1].confirm(1)
    assert node.confirmed == [1]


def test_a_turn_may_have_several_blocks_for_a_shard() -> None:
    """A block for very many sessions is cut."""
    node = Node()
    node.commit([(0, "a"), (0, "b"), (1, "c")])
    node.shards[0].confirm(2)
    node.shards[1].confirm(1)
    assert node.confirmed == [1]
