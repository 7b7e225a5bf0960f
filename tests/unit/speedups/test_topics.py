"""Holds topics.pyx against the tables of tests/cases and against the plain model, on given and on generated input."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flockmq._speedups.codec.topics import (
    InvalidTopic,
    has_control_characters,
    is_shared,
    matches,
    split_shared,
    validate_topic_filter,
    validate_topic_name,
)
from tests.cases.topics import MATCHES, VALIDITIES, Match, Validity
from tests.model import topics as model

BOUNDED = settings(max_examples=1000)


def is_topic_name(topic: str | bytes, level: int = 4, max_levels: int = 200) -> bool:
    try:
        validate_topic_name(topic, level, max_levels)
    except InvalidTopic as error:
        assert error.reason
        assert error.code == 0x90
        return False
    return True


def is_topic_filter(topic: str | bytes, level: int = 4, max_levels: int = 200) -> bool:
    try:
        validate_topic_filter(topic, level, max_levels)
    except InvalidTopic as error:
        assert error.reason
        assert error.code == 0x8F
        return False
    return True


@pytest.mark.parametrize("case", MATCHES, ids=lambda case: f"{case.topic_filter} {case.topic_name}")
def test_match(case: Match) -> None:
    assert matches(case.topic_filter, case.topic_name) is case.matches
    assert matches(case.topic_filter.encode(), case.topic_name.encode()) is case.matches
    assert model.matches(case.topic_filter, case.topic_name) is case.matches


@pytest.mark.parametrize("case", VALIDITIES, ids=lambda case: case.name)
def test_validity(case: Validity) -> None:
    data = case.topic.encode() if isinstance(case.topic, str) else case.topic
    assert is_topic_name(case.topic, case.level, case.max_levels) is case.is_name
    assert is_topic_filter(case.topic, case.level, case.max_levels) is case.is_filter
    assert model.is_topic_name(data, case.level, case.max_levels) is case.is_name
    assert model.is_topic_filter(data, case.level, case.max_levels) is case.is_filter


INVALID = [case for case in VALIDITIES if case.statement.startswith("MQTT") and not case.is_filter]


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case.name)
def test_reason_names_the_statement(case: Validity) -> None:
    with pytest.raises(InvalidTopic, match=case.statement):
        validate_topic_filter(case.topic)


def test_lone_surrogate_of_a_str_is_refused_and_nothing_else_is_raised() -> None:
    assert not is_topic_name("\ud800")
    assert not is_topic_filter("a/\udfff")
    assert not matches("a", "\ud800")


@pytest.mark.parametrize("position", range(20))
def test_every_place_in_a_block_of_eight_is_looked_at(position: int) -> None:
    for wrong in (b"\0", b"\x80", b"\xff", b"+", b"#"):
        topic = b"x" * position + wrong + b"x" * (19 - position)
        assert not is_topic_name(topic)
        assert not is_topic_filter(topic)
    levels = b"x" * position + b"/" + b"x" * (19 - position)
    assert is_topic_name(levels, max_levels=2)
    assert not is_topic_name(levels, max_levels=1)


def test_every_pair_of_bytes_is_judged_as_the_model_judges_it() -> None:
    for first in range(0x80, 0x100):
        for second in (0, 0x2F, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF):
            for rest in (b"", b"\x80", b"\x80\x80", b"\xbf\xbf/", b"\x80\x00"):
                topic = bytes([first, second]) + rest
                assert is_topic_name(topic) is model.is_topic_name(topic), topic


# Few letters and many special ones, so that names and filters meet often.
words = st.text(alphabet="ab/+#$ä\0\u20ac", max_size=24)
names = st.lists(st.sampled_from(["a", "b", "", "$a", "ä"]), min_size=1, max_size=6).map("/".join).filter(bool)
parts = st.lists(st.sampled_from(["a", "b", "", "$a", "ä", "+", "+"]), min_size=1, max_size=6)
filters = st.tuples(parts, st.booleans()).map(lambda f: "/".join(f[0] + ["#"] * f[1])).filter(bool)


@BOUNDED
@given(filters, names)
def test_match_as_the_model_does(topic_filter: str, topic_name: str) -> None:
    assert matches(topic_filter, topic_name) is model.matches(topic_filter, topic_name)


@BOUNDED
@given(st.lists(st.tuples(st.sampled_from("ab$"), st.sampled_from(["same", "+", "cut", "#"])), min_size=1, max_size=8))
def test_filters_made_from_their_name(levels: list[tuple[str, str]]) -> None:
    name = "/".join(level for level, _ in levels)
    made: list[str] = []
    for level, change in levels:
        made.append({"same": level, "+": "+", "#": "#", "cut": ""}[change])
        if change == "#":
            break
    topic_filter = "/".join(made)
    assert matches(topic_filter, name) is model.matches(topic_filter, name)


@BOUNDED
@given(words, st.sampled_from([3, 4, 5]), st.integers(1, 6))
def test_validity_as_the_model_does(topic: str, level: int, max_levels: int) -> None:
    data = topic.encode()
    assert is_topic_name(topic, level, max_levels) is model.is_topic_name(data, level, max_levels)
    assert is_topic_filter(topic, level, max_levels) is model.is_topic_filter(data, level, max_levels)


@BOUNDED
@given(st.binary(max_size=24))
def test_any_bytes_are_judged_as_the_model_judges_them(data: bytes) -> None:
    assert is_topic_name(data) is model.is_topic_name(data)
    assert is_topic_filter(data) is model.is_topic_filter(data)


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=20))
@example("abcdefg\x1f")
@example("abcdefgh\x7f")
@example("\x9f\ufdd0")
@example("x\U0001fffe")
@example("\u00a0\ufdf0\ufffd")
def test_control_characters_are_those_that_the_standard_names(text: str) -> None:
    def is_unwanted(character: str) -> bool:
        code = ord(character)
        return 1 <= code <= 0x1F or 0x7F <= code <= 0x9F or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE

    assert has_control_characters(text) == any(map(is_unwanted, text))


@pytest.mark.parametrize(
    ("topic_filter", "parts"),
    [
        ("$share/a/b", ("a", "b")),
        ("$share/workers/jobs/+/#", ("workers", "jobs/+/#")),
        ("$share/a//", ("a", "/")),
        ("$share/a//b", ("a", "/b")),
        ("$share/é/ü", ("é", "ü")),
        ("$share/$share/$share/x", ("$share", "$share/x")),
    ],
)
def test_a_shared_subscription_has_a_share_name_and_a_filter(topic_filter: str, parts: tuple[str, str]) -> None:
    assert split_shared(topic_filter) == parts
    assert is_shared(topic_filter)
    assert is_shared(topic_filter.encode())


@pytest.mark.parametrize(
    "topic_filter",
    ["$share/", "$share/a", "$share/a/", "$share//b", "$share//b/c", "$share/+/b", "$share/a#/b", "$share/a+c/b"],
)
def test_share_names_are_checked(topic_filter: str) -> None:
    assert is_shared(topic_filter)
    with pytest.raises(InvalidTopic) as error:
        split_shared(topic_filter)
    assert error.value.code == 0x8F


@pytest.mark.parametrize("topic_filter", ["", "a/b", "$share", "$shared/a/b", "$SHARE/a/b", "/$share/a/b"])
def test_other_filters_are_no_shared_subscriptions(topic_filter: str) -> None:
    assert not is_shared(topic_filter)
    with pytest.raises(InvalidTopic):
        split_shared(topic_filter)
