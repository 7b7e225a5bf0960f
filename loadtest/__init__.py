"""Load generator, yardstick relay, micro-benchmarks, report; only `swarm` needs more than `_speedups`: locust."""
