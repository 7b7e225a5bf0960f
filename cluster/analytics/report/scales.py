"""The places of values and times on an axis, and their labels."""

import math
from collections.abc import Callable
from datetime import datetime, timedelta

from .words import SECOND

MINUTE, HOUR, DAY = 60, 3600, 86400
STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    7 * DAY,
    14 * DAY,
)


class Scale:
    """From a value to a place between 0 (bottom) and 1 (top), with values for labels.

    Args:
        low, high: the values to be shown.
        log: whether the scale is logarithmic; values must then be above 0.
        base: of round numbers: 10, or 2 for bytes.
    """

    def __init__(self, low: float, high: float, *, log: bool = False, base: int = 10) -> None:
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = 0.0, 1.0
        self.log = log and low > 0
        self.ticks: list[float]
        if self.log:
            step = 10.0 if base == 10 else 4.0
            low, high = min(max(low, 1e-100), 1e199), min(high, 1e200)  # powers beyond these overflow
            first = math.floor(math.log(low, step) + 1e-9)
            last = max(first + 1, math.ceil(math.log(high, step) - 1e-9))
            every = math.ceil((last - first) / 5)
            self.ticks = [step**power for power in range(first, last + 1, every)]
            if self.ticks[-1] < high * (1 - 1e-9):
                self.ticks.append(step ** (first + every * len(self.ticks)))
        else:
            if high <= low:
                high = low + (abs(low) or 1.0)
            step = _nice((high - low) / 3, base)
            first = math.floor(low / step + 1e-9)
            last = math.ceil(high / step - 1e-9)
            self.ticks = [step * number for number in range(first, last + 1)]
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def place(self, value: float) -> float:
        """The place of a value; values outside are at the edge."""
        if self.log:
            at = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            at = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, at))


def _nice(step: float, base: int) -> float:
    """The next round number."""
    if base == 2 and step >= 1:
        unit = 1024.0 ** math.floor(math.log(step, 1024) + 1e-9)
        return next(unit * factor for factor in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if unit * factor >= step)
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= step * (1 - 1e-9))


def bin_width(begin: int, end: int, at_most: int, unit: int = SECOND) -> int:
    """The microseconds of a bin, so that about `at_most` bins cover the range; a multiple of `unit`."""
    needed = max(1, end - begin) / at_most
    for step in STEPS:
        if step * SECOND >= needed and step * SECOND % unit == 0:
            return step * SECOND
    return math.ceil(needed / unit) * unit if needed > STEPS[-1] * SECOND or unit > SECOND else math.ceil(needed)


def time_ticks(begin: int, end: int, at_most: int = 7) -> list[tuple[int, str]]:
    """Round local times within the range, with their labels; a new day is named."""
    seconds = max(1, (end - begin) // SECOND)
    step = next((step for step in STEPS if seconds / step <= at_most), math.ceil(seconds / at_most / DAY) * DAY)
    ticks: list[tuple[int, str]] = []
    here = datetime.fromtimestamp(begin // SECOND).replace(microsecond=0)
    at = here.replace(hour=0, minute=0, second=0)
    if step < DAY:
        at += timedelta(seconds=int((here - at).total_seconds()) // step * step)
    while (when := round(at.timestamp()) * SECOND) <= end:
        if when >= begin and (not ticks or when > ticks[-1][0]):  # the clock may be set back
            ticks.append((when, _label(at, step, begin, end)))
        at += timedelta(seconds=step)
    return ticks


def _label(at: datetime, step: int, begin: int, end: int) -> str:
    if step >= DAY or (at.hour == 0 and at.minute == 0 and at.second == 0):
        return f"{at:%-d %b %Y}" if end - begin > 300 * DAY * SECOND else f"{at:%-d %b}"
    return f"{at:%H:%M:%S}" if step < MINUTE else f"{at:%H:%M}"


Format = Callable[[float | None], str]
