"""Sessions of all levels against a plain model: queues, packet identifiers, DUP, QoS 2 states, windows, sizes, expiry.

And what a restart makes of them.
"""

import pytest
from hypothesis import HealthCheck, settings

from broker.coordination import expiry
from broker.storage import compaction
from tests.unit.speedups.session_machine import WALL, SessionMachine


@pytest.fixture(autouse=True)
def compaction_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE", 1)
    monkeypatch.setattr(compaction, "RETAINED_BATCH", 1)


@pytest.fixture(autouse=True)
def a_clock_of_the_test_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's clock goes on by the wall clock while the node is off."""
    monkeypatch.setattr(expiry, "_wall", lambda: WALL[0])


class TestSessions(SessionMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=100, stateful_step_count=50, suppress_health_check=list(HealthCheck))
