"""Rights, against a plain model: a rule is a topic filter, denials come first, nothing is allowed by itself."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq._speedups.session.rights import PUBLISH, READ, Rights, covers, overlap
from tests.model import topics

LEVELS = ("a", "b", "", "$x")
NAMES = ["/".join(levels) for n in (1, 2, 3) for levels in itertools.product(LEVELS, repeat=n) if levels != ("",)]
filters = (
    st.lists(st.sampled_from((*LEVELS, "+", "#")), min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda name: topics.is_topic_filter(name.encode()))
)
rules = st.lists(st.tuples(st.booleans(), st.sampled_from((READ, PUBLISH, READ | PUBLISH)), filters), max_size=5)


def allows(given_rules: list[tuple[bool, int, str]], access: int, topic: str) -> bool:
    """The meaning of the rules."""
    hits = [allow for allow, what, name in given_rules if what & access and topics.matches(name, topic)]
    return bool(hits) and all(hits)


@given(rules)
def test_what_is_allowed_is_what_the_rules_say(given_rules: list[tuple[bool, int, str]]) -> None:
    rights = Rights((allow, what, name.encode()) for allow, what, name in given_rules)
    for topic in NAMES:
        assert rights.may_publish(topic.encode()) == allows(given_rules, PUBLISH, topic)
        assert rights.may_read(topic.encode()) == allows(given_rules, READ, topic)


@given(filters, filters)
def test_two_filters_overlap_when_a_name_matches_both(one: str, other: str) -> None:
    both = any(topics.matches(one, name) and topics.matches(other, name) for name in NAMES)
    assert overlap(one.encode(), other.encode()) == overlap(other.encode(), one.encode())
    if both:
        assert overlap(one.encode(), other.encode())
    elif "#" not in one + other:  # a `#` may match names that are longer than those tried here
        assert not overlap(one.encode(), other.encode())


def meet(one: list[str], other: list[str]) -> bool:
    """Whether some topic matches the levels of both filters."""
    if one[:1] == ["#"] or other[:1] == ["#"]:
        return True
    if not one or not other:
        return one == other
    return (one[0] == other[0] or "+" in (one[0], other[0])) and meet(one[1:], other[1:])


def cover(wide: list[str], narrow: list[str]) -> bool:
    """Whether a filter matches all topics of another, by their levels."""
    if wide[:1] == ["#"] or not wide:
        return wide == ["#"] or not narrow
    if not narrow or narrow[0] == "#":
        return False
    return wide[0] in ("+", narrow[0]) and cover(wide[1:], narrow[1:])


def is_hidden(wild: str, name: str) -> bool:
    """Whether a wildcard in the first level of a filter stands before `$`."""
    return wild[:1] in ("+", "#") and name.startswith("$")


@given(filters, filters, st.sampled_from(("", "$tenant/acme/", "$tenant/a/")), st.booleans())
def test_filters_are_compared_level_by_level(one: str, other: str, prefix: str, is_of_another: bool) -> None:
    wide, narrow = one, other
    if is_of_another:  # then the prefix is levels as all others
        wide, prefix = prefix + one, ""
    hidden = is_hidden(wide, narrow)
    levels = wide.split("/"), narrow.split("/")
    found = (prefix + wide).encode(), (prefix + narrow).encode()
    assert covers(*found) == (not hidden and cover(*levels))
    assert overlap(*found) == (not hidden and not is_hidden(narrow, wide) and meet(*levels))


@given(filters, filters)
def test_a_filter_covers_another_when_it_matches_all_its_names(wide: str, narrow: str) -> None:
    matched = [name for name in NAMES if topics.matches(narrow, name)]
    if covers(wide.encode(), narrow.encode()):
        assert all(topics.matches(wide, name) for name in matched)
    # A `+` stands for levels that are not tried here, so that only filters without one can be judged the other way.
    elif "+" not in narrow and "#" not in narrow:
        assert not topics.matches(wide, narrow)


@pytest.mark.parametrize(
    ("wide", "narrow", "is_covered"),
    [
        ("#", "a/+", True),
        ("a/#", "a", True),
        ("a/+", "a/#", False),
        ("+/b", "a/b", True),
        ("+", "#", False),
        ("#", "$SYS/#", False),
        ("$SYS/#", "$SYS/broker/+", True),
        ("a/b", "a/+", False),
        ("+/+", "+/+", True),
    ],
)
def test_covers(wide: str, narrow: str, is_covered: bool) -> None:
    assert covers(wide.encode(), narrow.encode()) == is_covered


def test_a_subscription_is_granted_when_some_of_it_may_be_read() -> None:
    rights = Rights([(True, READ, b"site/+/temp"), (True, PUBLISH, b"cmd/#"), (False, READ, b"site/secret/#")])
    assert rights.may_subscribe(b"#")  # deliveries are judged message by message
    assert rights.may_subscribe(b"site/1/#")
    assert not rights.may_subscribe(b"cmd/#")
    assert not rights.may_subscribe(b"site/secret/+")
    assert not rights.may_subscribe(b"$SYS/#")


def test_dollar_topics_are_closed_unless_named() -> None:
    rights = Rights([(True, READ | PUBLISH, b"#"), (True, READ, b"$SYS/#")])
    assert rights.may_read(b"$SYS/broker/uptime")
    assert not rights.may_publish(b"$SYS/broker/uptime")
    assert not rights.may_read(b"$internal/x")


def test_equal_rights_are_equal() -> None:
    one = Rights([(True, READ, b"a"), (False, READ, b"b")])
    assert one == Rights([(False, READ, b"b"), (True, READ, b"a"), (True, READ, b"a")])
    assert one != Rights([(True, READ, b"a")])
    assert hash(one) == hash(Rights(list(one.key)))


def test_no_rules_allow_nothing() -> None:
    assert not Rights([]).may_read(b"a")
    assert not Rights([]).may_publish(b"a")
    assert not Rights([]).may_subscribe(b"#")


def test_a_filter_longer_than_a_topic_can_be_is_refused() -> None:
    with pytest.raises(ValueError, match="65535"):
        Rights([(True, READ, b"a" * 65536)])
