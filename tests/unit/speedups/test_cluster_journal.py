"""ClusterJournal: how much a block holds while Redis executes earlier ones."""

import pytest

from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq._speedups.session.turn import Turn


@pytest.mark.parametrize("ends", [10, 21_000])
def test_a_block_has_a_bounded_number_of_releases(ends: int) -> None:
    """Redis executes nothing else during a call, and must answer heartbeats when all clients disconnect at once."""
    journal = ClusterJournal(lambda ahead: b"")
    blocks: list[object] = []
    turn = Turn(journal, blocks.append)
    turn.limit_commits(2)
    for number in range(ends):
        journal.release(b"device-%05d" % number, number)
        if number % 500 == 499 or number == ends - 1:  # as many connections are served in a turn
            turn.end()
    assert len(blocks) == (1 if ends == 10 else 12)  # two of a turn each, then of four
