"""Load generator, yardstick relay, micro-benchmarks, report: `_speedups` and the standard library; `swarm/`: locust too."""
