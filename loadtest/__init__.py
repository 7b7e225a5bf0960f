"""Load generator, yardstick relay, micro-benchmarks, report, on `_speedups` and the standard library; `swarm`: locust."""
