"""The duties of every store, as one suite: a store supplies a way to open it and inherits all tests.

`Opener` makes a new `Store` object over the same kept state each time it is called; `Loop` stands for the loop of the
node, whose thread is the test's. Damage that only one kind of store can suffer is tested beside that store.
"""

import queue
import random
import threading
from collections.abc import Callable

import pytest

from flockmq.broker.errors import StoreError
from flockmq.broker.storage.store import Store
from tests.harness.deadline import DEADLINE

Opener = Callable[[], Store]


class Loop:
    """Runs what a store calls on the loop's thread, when the test asks for it."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[object, ...]]] = queue.SimpleQueue()
        self.confirmed = 0
        self.groups: list[int] = []

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        self._calls.put((function, arguments))

    def confirm(self, blocks: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.confirmed += blocks
        self.groups.append(blocks)

    def step(self, timeout: float = DEADLINE) -> None:
        """Do one call; `queue.Empty` if none comes."""
        function, arguments = self._calls.get(timeout=timeout)
        function(*arguments)

    def wait_for(self, confirmed: int) -> None:
        while self.confirmed < confirmed:
            self.step()

    def drain(self) -> None:
        """Do all calls that have been asked for."""
        while not self._calls.empty():
            self.step()


def opened(store: Store) -> tuple[Loop, list[bytes]]:
    """Open and start a store: its loop, and the blocks that it held."""
    blocks = list(store.open())
    loop = Loop()
    store.start(loop.confirm, loop.call)
    return loop, blocks


def some_blocks(count: int, *, largest: int = 3000, seed: int = 1) -> list[bytes]:
    """Blocks of all kinds of sizes, each different."""
    rng = random.Random(seed)
    return [number.to_bytes(4, "big") + rng.randbytes(rng.choice((0, 1, 30, largest))) for number in range(count)]


class StoreSuite:
    """Inherit, and give a fixture `opener`."""

    def test_a_new_store_holds_nothing(self, opener: Opener) -> None:
        store = opener()
        _, blocks = opened(store)
        assert blocks == []
        assert store.size == 0
        store.close()

    def test_every_block_is_confirmed_once_and_never_within_commit(self, opener: Opener) -> None:
        store = opener()
        loop, _ = opened(store)
        first = store.position
        blocks = some_blocks(300)
        for count, block in enumerate(blocks):
            assert store.position == first + count
            store.commit(block)
            assert loop.confirmed <= count  # a caller may still be in the middle of its turn
        loop.wait_for(len(blocks))
        loop.drain()
        assert loop.confirmed == len(blocks) == sum(loop.groups)
        assert min(loop.groups) >= 1
        store.close()

    def test_a_large_block(self, opener: Opener) -> None:
        store = opener()
        loop, _ = opened(store)
        block = random.Random(2).randbytes(20_000_000)
        store.commit(block)
        loop.wait_for(1)
        store.close()
        if store.durable:
            assert list(opener().open()) == [block]

    def test_close_keeps_what_was_committed(self, opener: Opener) -> None:
        store = opener()
        _, _ = opened(store)
        blocks = some_blocks(50)
        for block in blocks:
            store.commit(block)
        store.close()
        assert list(opener().open()) == (blocks if store.durable else [])

    def test_close_confirms_nothing_after_it_and_may_come_without_start(self, opener: Opener) -> None:
        store = opener()
        loop, _ = opened(store)
        store.commit(b"block")
        store.close()
        loop.drain()
        loop.confirmed = 0
        loop.drain()
        assert loop.confirmed == 0
        again = opener()
        list(again.open())
        again.close()

    def test_blocks_come_back_in_order_and_byte_for_byte_over_many_lives(self, opener: Opener) -> None:
        kept: list[bytes] = []
        position = 0
        for life in range(4):
            store = opener()
            loop, blocks = opened(store)
            if not store.durable:
                assert blocks == []
                store.close()
                return
            assert blocks == kept
            assert store.size == sum(map(len, kept))
            assert position in (0, store.position)
            for block in some_blocks(40, seed=life):
                store.commit(block)
                kept.append(block)
            loop.wait_for(40)
            position = store.position
            store.close()

    def test_forget_before_drops_exactly_the_blocks_before(self, opener: Opener) -> None:
        store = opener()
        loop, _ = opened(store)
        blocks = some_blocks(30)
        for block in blocks[:20]:
            store.commit(block)
        position = store.position
        for block in blocks[20:]:
            store.commit(block)
        store.forget_before(position)
        store.commit(b"last")
        loop.wait_for(31)
        if store.durable:
            while store.size > sum(map(len, blocks[20:])) + 4:
                loop.step()
            assert store.size == sum(map(len, blocks[20:])) + 4
        after = store.position
        store.close()
        again = opener()
        _, found = opened(again)
        if store.durable:
            assert found == [*blocks[20:], b"last"]
            assert again.position == after
            assert again.size == sum(map(len, found))
        again.close()

    def test_forget_before_follows_earlier_commits(self, opener: Opener) -> None:
        store = opener()
        if not store.durable:
            pytest.skip("keeps nothing")
        opened(store)
        for number in range(100):  # each block makes the block before it needless, as fast as can be
            position = store.position
            store.commit(b"block %d" % number)
            store.forget_before(position)
        store.close()
        assert list(opener().open()) == [b"block 99"]

    def test_position_goes_on_when_all_is_forgotten(self, opener: Opener) -> None:
        store = opener()
        if not store.durable:
            pytest.skip("keeps nothing")
        opened(store)
        for block in some_blocks(5):
            store.commit(block)
        store.forget_before(store.position)
        store.close()
        store = opener()
        loop, blocks = opened(store)
        assert blocks == []
        store.commit(b"after")
        loop.wait_for(1)
        store.close()
        assert list(opener().open()) == [b"after"]

    def test_a_second_opener_is_refused_and_harms_nothing(self, opener: Opener) -> None:
        store = opener()
        if not store.durable:
            pytest.skip("keeps nothing, so there is nothing to share")
        loop, _ = opened(store)
        store.commit(b"one")
        with pytest.raises(StoreError, match="in use"):
            list(opener().open())
        store.commit(b"two")
        loop.wait_for(2)
        store.close()
        assert list(opener().open()) == [b"one", b"two"]

    def test_it_says_what_is_kept_where(self, opener: Opener) -> None:
        store = opener()
        assert store.describe()
        assert "\n" not in store.describe()
