"""The groups of a cluster at a node: their ticks, and the messages that they get when the link is back."""

from types import SimpleNamespace
from typing import Any

import pytest

from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq.cluster.sessions.assignments import Assignments


class NotWalked(dict[bytes, Any]):
    """The groups of a node: there may be very many."""

    def values(self) -> Any:
        raise AssertionError("a tick walks over all groups")


class HasAside:
    """A group with messages that no subscriber at this node may take, for some ticks."""

    def __init__(self, ticks: int) -> None:
        self.left = ticks

    def tick(self) -> bool:
        self.left -= 1
        return self.left > 0


def test_a_tick_visits_only_groups_that_have_put_messages_aside() -> None:
    records = ClusterJournal(lambda ahead: b"").group_records
    filters = SimpleNamespace(set_group_backing=lambda kind: None, groups=NotWalked())
    plane: Any = SimpleNamespace(router=SimpleNamespace(filters=filters), sessions=None)
    nothing: Any = None
    assignments = Assignments(plane, nothing, nothing, records, nothing, nothing, 0)
    short, long = HasAside(1), HasAside(3)
    records.to_tick.update([short, long])
    assignments.tick()
    assert records.to_tick == {long}
    for _ in range(3):
        assignments.tick()
    assert not records.to_tick
    assert (short.left, long.left) == (0, 0)


def test_the_number_of_leases_is_noted_although_all_have_arrived_or_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Redis finds no room there for ever. An assignment that is here may have another number now."""
    numbered = list[Any]()
    monkeypatch.setattr("flockmq.cluster.sessions.assignments.renumber", lambda *fields: numbered.append(fields))
    group, totals, asked = b"$share/g/t", list[int](), list[Any]()
    known = SimpleNamespace(name=group)
    found = SimpleNamespace(
        group=known, places={4}, note_total=totals.append, resume=lambda: None, forget_room=lambda: None
    )
    known.backing, known.shard = found, 0
    filters = SimpleNamespace(set_group_backing=lambda kind: None, groups={group: known})
    plane: Any = SimpleNamespace(router=SimpleNamespace(filters=filters), sessions=None)
    link: Any = SimpleNamespace(function=lambda then, name: asked.append(then))
    store: Any = SimpleNamespace(ended_assignments=lambda: iter([(group, 3)]))
    nothing: Any = None
    assignments = Assignments(plane, link, nothing, ClusterJournal(lambda ahead: b"").group_records, store, nothing, 0)
    assignments.recover()
    asked[0]([[group, 3, b"ends", group, 4, b"is here"], [group, 20]])
    assert totals == [20]
    assert numbered == [(known, 4, b"is here")]


def test_a_redis_that_lost_a_message_on_its_way_to_another_shard_is_found() -> None:
    """Its place is given once more: the end of the first message ended the assignment of the second."""
    records = ClusterJournal(lambda ahead: b"").group_records
    records.under_way[b"$share/g/t", 7] = -1
    filters = SimpleNamespace(set_group_backing=lambda kind: None, groups={})
    plane: Any = SimpleNamespace(router=SimpleNamespace(filters=filters), sessions=None)
    store: Any = SimpleNamespace(ended_assignments=lambda: iter(()))
    nothing: Any = None
    assignments = Assignments(plane, nothing, nothing, records, store, nothing, 0)
    assert assignments.last_places() == {b"$share/g/t": 7}
