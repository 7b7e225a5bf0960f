"""The load of the node: lag of the loop, latency of the store."""

import pytest

from flockmq._speedups.session.journal import Journal
from flockmq._speedups.session.turn import Turn
from flockmq.broker.core import loop_monitor
from flockmq.broker.core.loop_monitor import LoopMonitor, Maximum


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loop_monitor, "time", clock)
    return clock


def test_the_longest_is_forgotten(clock: Clock) -> None:
    longest = Maximum()
    assert longest.read() == 0
    longest.add(0.5)
    longest.add(0.25)
    assert longest.read() == 0.5
    clock.now += 15
    longest.add(0.125)
    assert longest.read() == 0.5
    clock.now += 15
    assert longest.read() == 0.125
    clock.now += 100
    assert longest.read() == 0


def test_reading_changes_nothing(clock: Clock) -> None:
    """OpenTelemetry's thread does, while the loop's notes."""
    longest = Maximum()
    longest.add(0.5)
    before = vars(longest).copy()
    for expected in (0.5, 0.5, 0.0):
        assert longest.read() == expected
        assert vars(longest) == before
        clock.now += 15


def test_a_store_that_does_not_answer(clock: Clock) -> None:
    journal = Journal()
    journal.start()
    blocks: list[bytes] = []
    turn = Turn(journal, blocks.append)
    monitor = LoopMonitor(turn)
    monitor.tick(0.001)
    assert monitor.store_latency.read() == 0  # nothing had been recorded
    journal.record_will_gone(b"lamp")
    turn.seal()
    monitor.tick(0.002)
    clock.now += 3
    monitor.tick(0.001)
    assert monitor.store_latency.read() == 3
    clock.now += 1
    turn.confirm(len(blocks))
    assert monitor.store_latency.read() == 4
    assert monitor.loop_lag.read() == 0.002
