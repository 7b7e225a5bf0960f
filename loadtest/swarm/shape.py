"""The shape of a flash crowd: all clients lose their connections at once and reconnect at once."""

from __future__ import annotations

from collections.abc import Callable

from locust import LoadTestShape
from locust.runners import Runner

from .scenario import Storm


class FlashCrowd(LoadTestShape):
    """A steady load, then one storm of reconnects or several.

    Args:
        runner: locust's.
        storm: its times.
        start_storm: breaks the connections in all processes.
    """

    abstract = True  # locust must not create it
    use_common_options = True

    def __init__(self, runner: Runner, storm: Storm, start_storm: Callable[[], None]) -> None:
        super().__init__()
        self.runner = runner
        self._storm = storm
        self._start_storm = start_storm
        self._storms = 0

    def reset_time(self) -> None:
        super().reset_time()
        self._storms = 0

    def tick(self) -> tuple[int, float] | None:
        """Called by locust each second."""
        options = self.runner.environment.parsed_options if self.runner else None
        assert options is not None, "locust has parsed its options"
        passed = self.get_run_time()
        if options.run_time and passed > options.run_time:
            return None
        if passed >= self._next():
            self._storms += 1
            self._start_storm()
        return int(options.num_users or 1), float(options.spawn_rate or 1)

    def _next(self) -> float:
        if self._storms and not self._storm.every:
            return float("inf")
        return self._storm.after + self._storms * self._storm.every
