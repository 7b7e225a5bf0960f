"""Latencies: quantiles, merging, and the form that HdrHistogram's plotters read."""

import re
from statistics import fmean, pstdev

from hypothesis import given
from hypothesis import strategies as st

from flockmq.loadtest.generator.latency import Latencies

COUNTS = st.dictionaries(st.integers(1, 10**9).map(float), st.integers(1, 1000), min_size=1, max_size=40)
LINE = re.compile(r" *(\d+\.\d{3}) (\d\.\d{12}) +(\d+)(?: +(\d+\.\d{2}))?")


@given(COUNTS, st.floats(0, 1))
def test_quantile(counts: dict[float, int], fraction: float) -> None:
    values = sorted(value for value, count in counts.items() for _ in range(count))
    found = Latencies(counts).quantile(fraction)
    assert sum(value <= found for value in values) >= fraction * len(values)
    assert sum(value < found for value in values) < max(fraction * len(values), 1e-9)


@given(COUNTS, COUNTS)
def test_merged(one: dict[float, int], other: dict[float, int]) -> None:
    merged = Latencies.merged([Latencies(one), Latencies(other)])
    assert merged.counts == {value: one.get(value, 0) + other.get(value, 0) for value in sorted({*one, *other})}


def test_none() -> None:
    assert Latencies().quantile(0.5) == 0
    assert Latencies().figures()["latency_p99_us"] == 0


@given(COUNTS)
def test_written(counts: dict[float, int]) -> None:
    latencies = Latencies(counts)
    head, *lines, mean, most = latencies.lines()
    assert head.split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    rows = [LINE.fullmatch(line) for line in lines]
    assert all(rows)
    shares = [float(row[2]) for row in rows if row]
    totals = [int(row[3]) for row in rows if row]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert totals[-1] == latencies.total
    for row, share, total in zip(rows, shares, totals, strict=True):
        assert row
        assert abs(latencies.quantile((total - 0.5) / latencies.total) / 1e3 - float(row[1])) < 0.001
        assert abs(share - total / latencies.total) < 1e-9
    values = [value / 1e3 for value, count in counts.items() for _ in range(count)]
    figures = [float(number) for number in re.findall(r"= +([\d.]+)", mean)]
    assert abs(figures[0] - fmean(values)) < 0.001
    assert abs(figures[1] - pstdev(values)) < 0.01 + pstdev(values) * 1e-6
    assert f"{latencies.total:12d}" in most
