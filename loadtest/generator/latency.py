"""Histograms of latencies: merged over processes, read as quantiles, written in HdrHistogram's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
TICKS_PER_HALVING = 5  # lines of the written form per halving of the distance to 1


class Latencies:
    """A histogram.

    Args:
        counts: nanoseconds -> number of occurrences.
    """

    def __init__(self, counts: Mapping[float, int] | None = None) -> None:
        self.counts = dict(sorted((counts or {}).items()))
        self.total = sum(self.counts.values())

    @classmethod
    def merged(cls, parts: Iterable[Latencies]) -> Latencies:
        """One histogram of all parts."""
        counts: Counter[float] = Counter()
        for part in parts:
            counts.update(part.counts)
        return cls(counts)

    def quantile(self, fraction: float) -> float:
        """Nanoseconds that `fraction` of the latencies do not exceed; 0 without latencies."""
        below = 0
        for value, count in self.counts.items():
            below += count
            if below >= fraction * self.total:
                return value
        return 0.0

    def figures(self) -> dict[str, float]:
        """The quantiles of QUANTILES, in microseconds."""
        return {f"latency_{name}_us": self.quantile(fraction) / 1e3 for name, fraction in QUANTILES.items()}

    def lines(self) -> Iterator[str]:
        """The percentile distribution in HdrHistogram's text form, in microseconds; its plotters read it."""
        yield f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}\n"
        below, tick = 0, 0
        for value, count in self.counts.items():
            below += count
            fraction = below / self.total
            if below == self.total:
                yield f"{value / 1e3:12.3f} {1.0:2.12f} {below:10d}"
            elif fraction >= _step(tick):
                yield f"{value / 1e3:12.3f} {fraction:2.12f} {below:10d} {1 / (1 - fraction):14.2f}"
                while _step(tick) <= fraction:
                    tick += 1
        mean = sum(value * count for value, count in self.counts.items()) / max(1, self.total) / 1e3
        yield f"#[Mean    = {mean:12.3f}, StdDeviation   = {self._deviation(mean):12.3f}]"
        yield f"#[Max     = {self.quantile(1.0) / 1e3:12.3f}, Total count    = {self.total:12d}]"

    def _deviation(self, mean: float) -> float:
        squares = sum((value / 1e3 - mean) ** 2 * count for value, count in self.counts.items())
        return float((squares / max(1, self.total)) ** 0.5)


def _step(tick: int) -> float:
    """The fraction of the written form's next line; approaches 1."""
    halvings, part = divmod(tick, TICKS_PER_HALVING)
    left = 0.5**halvings
    return 1 - left + left / 2 * part / TICKS_PER_HALVING
