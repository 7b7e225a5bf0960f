"""The table of limits: every option that is a limit has a row, and the fullest of many counts."""

import asyncio

import pytest

from flockmq.broker.admin.api.operations.limits import LIMIT, OPERATIONS, merged
from flockmq.broker.config.declared_group import OPTIONS as OF_GROUPS
from flockmq.broker.config.keys import KEYS
from flockmq.broker.config.link import OPTIONS as OF_LINKS
from flockmq.broker.config.tenants import LIMITS as OF_TENANTS
from flockmq.broker.limits import LIMITS, SCOPES, UNITS, WITHOUT_ROW, Use, fullest
from flockmq.broker.rpc.limits import fullest_sessions
from flockmq.broker.rpc.paging import SLICE
from tests.harness.inprocess import Node

NAMES = [row.name for row in LIMITS]
OPTIONS = {
    *(name for name, key in KEYS.items() if key.section == "limits" or key.field.name.startswith("max_")),
    *(f"tenants.{name}" for name in OF_TENANTS),
    *(f"links.{name}" for name in OF_LINKS if name.startswith("max_")),
    *(f"shared.{name}" for name in OF_GROUPS if name.startswith("max_")),
}


def test_each_option_has_a_row_or_a_reason() -> None:
    assert OPTIONS - set(NAMES) == set(WITHOUT_ROW)
    assert not set(WITHOUT_ROW) & set(NAMES)


def test_the_rows_are_whole() -> None:
    assert len(NAMES) == len(set(NAMES))
    for row in LIMITS:
        assert row.scope in SCOPES and row.unit in UNITS
        assert row.when_reached.endswith(".") and row.change.endswith("."), row.name
    assert {row.scope for row in LIMITS} == set(SCOPES) and {row.unit for row in LIMITS} == set(UNITS)


def test_the_way_to_change_it_is_that_of_the_option() -> None:
    change = {row.name: row.change for row in LIMITS}
    assert "restart" in change["limits.max_connections"]
    assert "SIGHUP" in change["limits.max_sessions"]
    for name in NAMES:
        if name in KEYS:
            assert ("SIGHUP" in change[name]) == KEYS[name].reloadable, name


def test_the_description_of_the_api_is_that_of_the_table() -> None:
    (operation,) = OPERATIONS
    assert operation.answer is not None and operation.answer["properties"]["items"]["items"] == LIMIT
    assert LIMIT["properties"]["name"]["enum"] == NAMES
    assert LIMIT["properties"]["scope"]["enum"] == list(SCOPES)
    assert LIMIT["properties"]["unit"]["enum"] == list(UNITS)


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([], Use(0, None)),
        ([Use(5, 10, "a"), Use(6, 100, "b")], Use(5, 10, "a")),  # each has its own limit
        ([Use(5, None, "a"), Use(6, None, "b")], Use(6, None, "b")),
        ([Use(1000, None, "a"), Use(1, 10, "b")], Use(1, 10, "b")),
        ([Use(0, 10, "a"), Use(None, 10, "b")], Use(0, 10, "a")),
    ],
)
def test_the_fullest(uses: list[Use], expected: Use) -> None:
    assert fullest(uses) == expected


def test_how_full() -> None:
    assert (Use(5, 10).full, Use(5, None).full, Use(None, 10).full, Use(0, 0).full) == (0.5, None, None, None)


def test_of_all_nodes_the_fullest_counts() -> None:
    def item(used: int, full: float | None, name: str = "limits.max_sessions") -> dict[str, object]:
        return {"name": name, "limit": 10, "used": used, "full": full, "whose": ""}

    nodes = {"a": [item(1, 0.1), item(3, None, "bans"), item(0, 0, "of a newer node")], "b": [item(9, 0.9)]}
    found = {each["name"]: each for each in merged(nodes)}
    assert set(found) == {"limits.max_sessions", "bans"}
    assert (found["limits.max_sessions"]["node"], found["limits.max_sessions"]["used"]) == ("b", 9)
    assert (found["bans"]["node"], found["bans"]["unit"]) == ("a", "bans")
    assert set(found["bans"]) == set(LIMIT["properties"])


@pytest.mark.parametrize("place", [0, SLICE - 1, SLICE, 2 * SLICE + 7])
def test_the_fullest_session_is_found_in_any_slice(place: int) -> None:
    node = Node()
    plane = node.broker.data_plane
    for number in range(2 * SLICE + 10):
        session = plane.sessions.create(b"c%d" % number, persistent=True, level=4)
        if number in (place, 1):
            plane.router.filters.subscribe(session, b"t", 1)
    plane.router.filters.subscribe(plane.sessions.get(b"c%d" % place), b"u", 1)
    plane.sessions.create(b"$link/x", persistent=True, level=4)  # has its own limits
    found = asyncio.run(fullest_sessions(node.broker))
    session, weight = found["limits.max_subscriptions"]
    assert (session.client_id, weight) == (b"c%d" % place, 2)
    assert found["limits.max_queued_messages"][1] == 0
