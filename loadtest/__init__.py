"""Load generator, yardstick relay, micro-benchmarks, report. Imports `_speedups` and the standard library only."""
