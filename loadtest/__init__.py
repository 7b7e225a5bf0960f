"""Load generator, baseline relay, micro-benchmarks, reports; `swarm` needs locust, the rest only `_speedups`."""
