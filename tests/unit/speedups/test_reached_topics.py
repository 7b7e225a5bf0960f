"""Topic names that are made for a name, and whether anything may receive them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq._speedups.codec.topics import matches, validate_topic_name
from tests.harness.inprocess import Node

HEAD = b"$SYS/broker/events/clients/"
LEVELS = st.sampled_from(["$SYS", "broker", "events", "clients", "c", "connected", "+", "x", "$tenant", ""])
FILTERS = st.builds(
    lambda levels, deep: "/".join([*levels, *["#"] * deep]),
    st.lists(LEVELS, min_size=1, max_size=6),
    st.booleans(),
)


@given(st.sets(FILTERS, max_size=4), st.sampled_from([b"connected", b"x"]))
def test_they_agree_with_the_matching_of_topics(filters: set[str], kind: bytes) -> None:
    node = Node()
    session = node.sessions.create(b"s", persistent=False, level=4)
    for topic_filter in filters:
        node.router.filters.subscribe(session, topic_filter.encode(), 0)
    topic = HEAD + b"c/" + kind
    is_wanted = any(matches(topic_filter, topic) for topic_filter in filters)
    assert node.router.filters.reached(HEAD, b"c", b"/" + kind) == (topic if is_wanted else None)
    assert node.router.filters.may_reach(HEAD[:-1]) or not is_wanted
    for topic_filter in filters:
        node.router.filters.unsubscribe(session, topic_filter.encode())
    assert not node.router.filters.may_reach(HEAD[:-1])
    node.close()


@given(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=3000))
def test_any_name_is_one_level_of_a_valid_topic_name(name: str) -> None:
    node = Node()
    session = node.sessions.create(b"s", persistent=False, level=4)
    node.router.filters.subscribe(session, HEAD + b"+/connected", 0)
    topic = node.router.filters.reached(HEAD, name.encode(), b"/connected")
    assert topic is not None
    validate_topic_name(topic)
    level = topic[len(HEAD) : -len(b"/connected")]
    assert b"/" not in level and len(level) <= 4096 + 3
    level.decode()
    node.close()


def test_a_head_that_is_too_long() -> None:
    node = Node()
    with pytest.raises(ValueError, match="too long"):
        node.router.filters.reached(b"x" * 2000, b"c", b"/connected")
    node.close()
