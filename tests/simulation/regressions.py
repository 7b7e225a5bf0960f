"""Faults of the product that the simulation has found, as short plans.

Each had the finding that its text names, with several of the seeds from 1 to 20.
"""

from tests.simulation.plan import ClientPlan, Plan, Step

PUBLISHER = ClientPlan("publisher 0", "publisher", 4)
SUBSCRIBERS = (ClientPlan("subscriber 0", "subscriber", 4), ClientPlan("subscriber 1", "subscriber", 5))
KEEPER = ClientPlan("keeper", "keeper", 4)


def _plan(*steps: Step) -> Plan:
    return Plan(1, (PUBLISHER, *SUBSCRIBERS, KEEPER), steps, frozenset())


REGRESSIONS = {
    # G5: a node that stood still, and was declared dead, sent its clients what had arrived from Redis meanwhile.
    "stood still": _plan(
        Step(2000, "freeze_node_of", ("subscriber 1", 3000)),
        Step(2500, "publish", ("publisher 0", "t/0", 2, 3)),
        Step(4700, "abandon", ("subscriber 1",)),
    ),
}
