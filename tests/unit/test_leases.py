"""The ticks of the groups of a cluster."""

from types import SimpleNamespace
from typing import Any

from _speedups.cluster.journal import ClusterJournal
from cluster.sessions.leases import Leases


class NotWalked(dict[bytes, Any]):
    """The groups of a node: there may be very many."""

    def values(self) -> Any:
        raise AssertionError("a tick walks over all groups")


class HasAside:
    """A group with messages that no member at this node may take, for some ticks."""

    def __init__(self, ticks: int) -> None:
        self.left = ticks

    def tick(self) -> bool:
        self.left -= 1
        return self.left > 0


def test_a_tick_visits_only_groups_that_have_put_messages_aside() -> None:
    journal = ClusterJournal(lambda: b"")
    filters = SimpleNamespace(set_group_type=lambda kind: None, groups=NotWalked())
    plane: Any = SimpleNamespace(router=SimpleNamespace(filters=filters), sessions=None)
    nothing: Any = None
    leases = Leases(plane, nothing, nothing, journal, nothing)
    short, long = HasAside(1), HasAside(3)
    journal.to_tick.update([short, long])
    leases.tick()
    assert journal.to_tick == {long}
    for _ in range(3):
        leases.tick()
    assert not journal.to_tick
    assert (short.left, long.left) == (0, 0)
