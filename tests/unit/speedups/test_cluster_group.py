"""Messages of QoS 0 to a group of a cluster: each node gets a part that fits the number of its subscribers."""

from collections.abc import Callable
from typing import Any

import pytest

from flockmq._speedups.cluster.group_assignments import GroupAssignments
from flockmq._speedups.cluster.journal import ClusterJournal
from flockmq._speedups.cluster.peer import Peer, Way
from flockmq._speedups.routing.router import Router
from flockmq._speedups.session.turn import Turn
from flockmq._speedups.session.turn_limits import TurnLimits
from flockmq.cluster.replication.routes import Routes, code_of, options_of

FILTER = "$share/g/t"
LIMITS = {
    "max_packet_size": 1 << 20,
    "max_topic_levels": 10,
    "max_inflight": 100,
    "max_queued_messages": 100,
    "max_queued_bytes": 1 << 20,
    "drop_oldest": False,
    "max_awaiting_release": 100,
    "max_outgoing_bytes": 1 << 20,
    "max_uncommitted_bytes": 1 << 26,
}


class Changes:
    """Instead of a journal: the changes that a node publishes."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []

    def change(self, record: tuple[Any, ...]) -> None:
        self.records.append(record)


def announced(count: int, qos: int = 1) -> int:
    changes = Changes()
    routes = Routes(changes)  # type: ignore[arg-type]
    for _ in range(count):
        routes.add(FILTER.encode(), qos, clean=True)
    return options_of(*changes.records[-1][2:])


@pytest.mark.parametrize(
    ("count", "code"), [(0, 0), (1, 1), (8, 8), (9, 8), (11, 8), (12, 9), (16, 9), (22, 9), (23, 10), (65536, 21)]
)
def test_numbers_of_subscribers_are_exact_to_eight_and_powers_of_two_above(count: int, code: int) -> None:
    assert code_of(count) == code


def test_joins_of_large_groups_make_few_changes() -> None:
    changes = Changes()
    routes = Routes(changes)  # type: ignore[arg-type]
    for _ in range(1000):
        routes.add(FILTER.encode(), 1, clean=True)
    assert len(changes.records) == 15
    for _ in range(999):
        routes.remove([(FILTER.encode(), 1)], clean=True)
    assert len(changes.records) == 29
    assert changes.records[-1] == ("route", FILTER.encode(), 1, 0, 0, 1)
    routes.remove([(FILTER.encode(), 1)], clean=True)
    assert changes.records[-1] == ("unroute", FILTER.encode())


def test_routes_of_other_filters_have_no_number() -> None:
    changes = Changes()
    routes = Routes(changes)  # type: ignore[arg-type]
    for qos in (0, 0, 2, 1):
        routes.add(b"t/#", qos, clean=True)
    assert changes.records == [("route", b"t/#", 0, 0, 0, 0), ("route", b"t/#", 2, 0, 0, 0)]


def test_a_route_says_when_only_persistent_sessions_have_its_filter() -> None:
    changes = Changes()
    routes = Routes(changes)  # type: ignore[arg-type]
    for clean in (False, False, True):
        routes.add(b"t/#", 1 if clean else 0, clean=clean)
    routes.remove([(b"t/#", 1)], clean=True)
    routes.remove([(b"t/#", 0)], clean=False)
    assert [route[2:] for route in changes.records] == [(0, 0, 1, 0), (1, 0, 0, 0), (1, 0, 1, 0)]


def test_a_route_says_when_all_its_sessions_have_queues() -> None:
    changes = Changes()
    routes = Routes(changes)  # type: ignore[arg-type]

    def announced_by(step: Callable[[], None]) -> list[list[int]]:
        changes.records.clear()
        step()
        return [fields for _, _, *fields, _ in changes.records]

    assert announced_by(lambda: routes.add(b"t", 1, clean=False)) == [[0, 1, 1]]
    assert announced_by(lambda: routes.add(b"t", 2, clean=False)) == []
    assert announced_by(lambda: routes.change(b"t", 2, 0, clean=False)) == [
        [0, 0, 1]
    ]  # it gets them at once, with QoS 0
    assert announced_by(lambda: routes.add(b"t", 0, clean=False)) == []
    assert announced_by(lambda: routes.change(b"t", 0, 2, clean=False)) == []
    assert announced_by(lambda: routes.remove([(b"t", 0)], clean=False)) == [[0, 1, 1]]
    assert announced_by(lambda: routes.add(b"t", 1, clean=True)) == [[1, 0, 0]]
    assert announced_by(lambda: routes.change(b"t", 2, 2, clean=True)) == [[2, 0, 0]]
    assert announced_by(lambda: routes.remove([(b"t", 2)], clean=True)) == [[2, 1, 1]]


@pytest.mark.parametrize(
    ("routes", "way"),
    [
        (((0, 1, 1),), Way.IN_QUEUES),
        (((2, 1, 1),), Way.IN_QUEUES),
        (((0, 0, 1),), Way.AT_MOST_ONCE),  # a persistent session has it with QoS 0
        (((0, 0, 0),), Way.AT_MOST_ONCE),
        (((1, 0, 0),), Way.LOGGED),
        (((0, 1, 1), (0, 0, 0)), Way.AT_MOST_ONCE),
        (((0, 0, 0), (2, 0, 0), (0, 1, 1)), Way.LOGGED),
    ],
)
def test_messages_go_the_way_of_all_matching_routes(routes: tuple[tuple[int, int, int], ...], way: Way) -> None:
    turn = Turn(ClusterJournal(lambda ahead: b""))
    turn.set_limits(TurnLimits(**LIMITS))
    filters = Router(turn).filters
    peer = Peer(turn, 1, b"n2", lambda batch: True)
    for name, route in zip((b"a/b", b"a/+", b"#"), routes, strict=False):
        filters.subscribe(peer, name, options_of(*route, 0))
    assert filters.receivers(b"a/b") == [(peer, way)]


def spread(counts: list[int], messages: int) -> list[int]:
    """How many messages each other node gets, by the number of its subscribers; none are here."""
    turn = Turn(ClusterJournal(lambda ahead: b""))
    turn.set_limits(TurnLimits(**LIMITS))
    router = Router(turn)
    router.filters.set_group_backing(GroupAssignments)
    batches: list[list[bytes]] = [[] for _ in counts]
    peers = [
        Peer(turn, 100 + number, b"n%d" % number, lambda batch, sent=batches[number]: not sent.append(batch))
        for number in range(len(counts))
    ]
    for peer, count in zip(peers, counts, strict=True):
        router.filters.subscribe(peer, FILTER.encode(), announced(count, 0))
    for _ in range(messages):
        router.publish(b"t", b"x")
        for peer in peers:
            peer.hold(False)
    return [sum(batch.count(FILTER.encode()) for batch in found) for found in batches]


@pytest.mark.parametrize("counts", [[3, 3, 4], [8, 1, 1], [1, 9], [10]])
def test_nodes_get_messages_by_the_number_of_their_subscribers(counts: list[int]) -> None:
    weights = [max(1, count if count <= 8 else 8) for count in counts]
    total = sum(weights)
    assert spread(counts, 10 * total) == [10 * weight for weight in weights]


def test_a_node_with_many_subscribers_counts_as_the_next_power_of_two() -> None:
    assert spread([100, 2], 130) == [128, 2]
