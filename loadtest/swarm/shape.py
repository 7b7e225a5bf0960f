"""The shape of a flash crowd: all clients at once lose their connections, and are back at once."""

from __future__ import annotations

from collections.abc import Callable

from locust import LoadTestShape
from locust.runners import Runner

from loadtest.swarm.scenario import Storm


class FlashCrowd(LoadTestShape):
    """Steady, then a storm of reconnects, and perhaps another.

    Args:
        runner: locust's.
        storm: when.
        strike: makes a storm in all processes.
    """

    abstract = True  # for locust: made by us, not by it
    use_common_options = True

    def __init__(self, runner: Runner, storm: Storm, strike: Callable[[], None]) -> None:
        super().__init__()
        self.runner = runner
        self._storm = storm
        self._strike = strike
        self._struck = 0

    def reset_time(self) -> None:
        super().reset_time()
        self._struck = 0

    def tick(self) -> tuple[int, float] | None:
        """Called by locust each second."""
        options = self.runner.environment.parsed_options if self.runner else None
        assert options is not None, "locust has parsed its options"
        passed = self.get_run_time()
        if options.run_time and passed > options.run_time:
            return None
        if passed >= self._next():
            self._struck += 1
            self._strike()
        return int(options.num_users or 1), float(options.spawn_rate or 1)

    def _next(self) -> float:
        if self._struck and not self._storm.every:
            return float("inf")
        return self._storm.after + self._struck * self._storm.every
