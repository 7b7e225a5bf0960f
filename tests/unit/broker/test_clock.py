"""The clock: ticks that have passed, and jobs at their periods."""

import asyncio
import time

from flockmq.broker.clock import EVERY_TICK, MAX_TICKS, Clock, Job
from tests.harness.deadline import DEADLINE


def test_jobs_run_at_their_periods_and_after_the_tick() -> None:
    seen: list[str] = []
    period = 0.0

    async def run() -> None:
        clock = Clock(
            asyncio.get_running_loop(),
            lambda ticks, missed, late: seen.append(f"tick {ticks}"),
            (
                Job(EVERY_TICK, lambda: seen.append("every tick")),
                Job(60.0, lambda: seen.append("late")),
                Job(lambda: period or 60.0, lambda: seen.append("configured")),
            ),
        )
        clock.start()
        await asyncio.sleep(0.35)
        clock.stop()
        before = len(seen)
        await asyncio.sleep(0.3)
        assert len(seen) == before

    asyncio.run(run())
    assert seen == ["tick 1", "every tick"]


def test_a_process_that_was_suspended_does_not_catch_up() -> None:
    ticks: list[tuple[int, int]] = []

    async def run() -> None:
        clock = Clock(asyncio.get_running_loop(), lambda passed, missed, late: ticks.append((passed, missed)), ())
        clock.start()
        time.sleep(1.6)  # noqa: ASYNC251 - the whole process is suspended
        await asyncio.sleep(0.05)
        clock.stop()

    asyncio.run(run())
    assert ticks == [(MAX_TICKS, 2)]  # expired sessions have expired all the same


def test_a_job_that_fails_stops_neither_the_clock_nor_other_jobs() -> None:
    runs: list[str] = []

    async def run() -> None:
        enough = asyncio.Event()

        def fail() -> None:
            runs.append("failed")
            raise RuntimeError("no reason")

        def go_on() -> None:
            runs.append("went on")
            if len(runs) == 4:
                enough.set()

        clock = Clock(
            asyncio.get_running_loop(),
            lambda ticks, missed, late: None,
            (Job(EVERY_TICK, fail), Job(EVERY_TICK, go_on)),
        )
        clock.start()
        await asyncio.wait_for(enough.wait(), DEADLINE)
        clock.stop()

    asyncio.run(run())
    assert runs == ["failed", "went on"] * 2
