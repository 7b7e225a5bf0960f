"""The whole cluster in one process with one seed: see deploy/docs/SIMULATION.md."""
