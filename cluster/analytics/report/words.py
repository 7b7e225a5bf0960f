"""Numbers, times and names as the page shows them.

Names are untrusted, because clients choose them. Unprintable characters are escaped, so that no direction mark or
control character is in the page; long names are shortened. Times are local times of the machine that makes the page.
"""

import math
import time
from datetime import datetime
from itertools import pairwise

SECOND = 1_000_000  # microseconds
NAME_MAX = 300  # characters of a name anywhere in the page
NOTHING = "\u2013"  # a dash
LABEL_MAX = 38  # characters of a label beside a plot: it fits a phone


def shown(name: object, limit: int = NAME_MAX) -> str:
    """A name with its unprintable characters escaped, at most `limit` characters; a longer one loses its middle."""
    text = "" if name is None else str(name)
    if len(text) > limit:
        half = limit // 2
        text = f"{text[: limit - half - 1]}…{text[-half:]}"
    if not text.isprintable():
        text = escaped(text)
        if len(text) > limit:
            return f"{text[: limit - 1]}…"
    return text or "(empty)"


def escaped(text: str) -> str:
    """Text with unprintable characters escaped as in Python: control characters, direction marks, lone surrogates."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def compact(value: float | None) -> str:
    """A number in few characters: 950, 1.2 k, 34 M."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor * 0.9995:
            return f"{_digits(value / factor)}{unit}"
    return _digits(value)


def whole(value: float | None) -> str:
    """A count with all digits."""
    return NOTHING if value is None else f"{round(value):,}"


def plain(value: float | None) -> str:
    """A measured value: six significant digits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1e6 else f"{value:.6g}"


def short(value: float | None) -> str:
    """A measured value: four significant digits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return compact(value) if abs(value) >= 1e5 else f"{value:.4g}"


def size(value: float | None) -> str:
    """Bytes."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for factor, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(value) >= factor * 0.9995:
            return f"{_digits(value / factor)} {unit}"
    return f"{_digits(value)} B"


def rate(value: float | None) -> str:
    """A number in each second."""
    return f"{compact(value)}/s" if value else compact(value)


def byte_rate(value: float | None) -> str:
    """Bytes in each second."""
    return f"{size(value)}/s" if value else compact(value)


def share(value: float | None) -> str:
    """A part of 1 as percents."""
    if value is None or not math.isfinite(value):
        return NOTHING
    percent = 100 * value
    return "< 0.1 %" if 0 < percent < 0.1 else f"{_digits(percent)} %"


def duration(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{_digits(seconds)} s"
    total = round(seconds)
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (factor, unit), (below, small) in pairwise(units):
        if total >= factor:
            rest = total % factor // below
            return f"{total // factor} {unit}{f' {rest} {small}' if rest else ''}"
    return f"{total} s"


def moment(at: int | None, seconds: bool = True) -> str:
    """A time with its day."""
    if at is None:
        return NOTHING
    return f"{datetime.fromtimestamp(at // SECOND):{'%Y-%m-%d %H:%M:%S' if seconds else '%Y-%m-%d %H:%M'}}"


def zone(at: int) -> str:
    """The zone that times are in: "UTC", or "CET (UTC+01:00)"."""
    here = time.localtime(at // SECOND)
    minutes = here.tm_gmtoff // 60
    if minutes == 0:
        return "UTC"
    return f"{here.tm_zone} (UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02})"


def _digits(value: float) -> str:
    """About three digits, without trailing zeros."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    text = f"{value:.{1 if abs(value) >= 9.995 else 2}f}" if abs(value) >= 0.01 else f"{value:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
