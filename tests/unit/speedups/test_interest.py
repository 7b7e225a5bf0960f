"""The wanted filters of a tree, against the plain model of matching."""

from hypothesis import given
from hypothesis import strategies as st

from flockmq._speedups.cluster.peer import Peer
from flockmq._speedups.routing.interest import wanted_filters
from flockmq._speedups.routing.subscriptions import SubscriptionTree
from flockmq._speedups.session.journal import Journal
from flockmq._speedups.session.rights import covers, overlap
from flockmq._speedups.session.session import Session
from flockmq._speedups.session.turn import Turn
from flockmq.cluster.replication.routes import ONLY_PERSISTENT

PARTS = ["a", "b", "", "$s"]
filters = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.sampled_from([*PARTS, "+"]), min_size=1, max_size=3),
    st.sampled_from([[], [], ["#"]]),
).filter(bool) | st.just("#")


def tree_of(names: list[str], ignored: list[str] | None = None) -> SubscriptionTree:
    """A tree in which session "0" has the first filters, and "ignored" the others."""
    tree = SubscriptionTree()
    turn = Turn(Journal())
    for number, (client_id, held) in enumerate(((b"0", names), (b"ignored", ignored or []))):
        session = Session(turn, number, client_id, persistent=False)
        for name in held:
            tree.subscribe(session, name.encode(), 1)
        sessions.append(session)  # the tree does not own them
    return tree


sessions: list[Session] = []


def found(tree: SubscriptionTree, scope: str, most: int = 1000, visits: int = 10_000) -> set[str] | None:
    levels = [level.encode() for level in scope.split("/")]
    names = wanted_filters(tree, levels, frozenset([b"ignored"]), most, visits)
    return None if names is None else {name.decode() for name in names}


@given(st.lists(filters, max_size=8), st.lists(filters, max_size=8), filters)
def test_found_are_the_filters_that_overlap_the_scope_and_that_no_other_covers(
    names: list[str], ignored: list[str], scope: str
) -> None:
    unlike = {name for name in names if overlap(name.encode(), scope.encode())}
    expected = {
        name
        for name in unlike
        if not any(other != name and covers(other.encode(), name.encode()) for other in set(names))
    }
    assert found(tree_of(names, ignored), scope) == expected


def test_more_than_the_limits_are_none() -> None:
    tree = tree_of([f"a/{number}" for number in range(10)])
    assert found(tree, "a/#", most=9) is None
    assert len(found(tree, "a/#", most=10) or ()) == 10
    assert found(tree, "a/#", visits=5) is None
    assert found(tree, "b/#", visits=5) == set()


def test_a_route_of_persistent_sessions_only_does_not_count() -> None:
    tree = SubscriptionTree()
    peer = Peer(Turn(Journal()), 9, b"node", lambda batch: True)
    tree.subscribe(peer, b"a/1", ONLY_PERSISTENT | 2)
    tree.subscribe(peer, b"a/2", 0)
    assert found(tree, "a/#") == {"a/2"}
    tree.subscribe(peer, b"a/1", 0)
    assert found(tree, "a/#") == {"a/1", "a/2"}
    tree.unsubscribe_all(peer)


def test_changes_are_counted() -> None:
    tree = tree_of(["a"])
    before = tree.changes
    tree.subscribe(sessions[-2], b"b", 0)
    after = tree.changes
    tree.unsubscribe(sessions[-2], b"b")
    assert before < after < tree.changes
