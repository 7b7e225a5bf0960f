"""Faults of the product that the simulation has found, as short plans.

Each had the finding that its text names, with several of the seeds from 1 to 20.
"""

from tests.simulation.plan import Plan

REGRESSIONS: dict[str, Plan] = {}
