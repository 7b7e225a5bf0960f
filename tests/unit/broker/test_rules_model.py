"""Rules with names of clients, against a plain model: texts that are filled in, and topics that match them."""

import re

from hypothesis import given
from hypothesis import strategies as st

from flockmq._speedups.session.rights import PUBLISH, READ
from flockmq.broker.auth.rules import Rule, rights_of
from tests.model import topics

MARK = re.compile("%[cu]")
NAMES = ("", "a", "b", "#", "+", "a/b", "/", "$SYS", "$", "é", "日本", "a\0", "%c", "%u", "%", "c", "x" * 300)
LEVELS = ("", "a", "b", "é", "x", "$SYS", "$share", "$tenant", "$x", "+", "#", "%", "c")
WITH_NAMES = ("%c", "%u", "x%c", "%ca", "%c%u", "$%c", "%%c", "%c%c", "%")
names = st.sampled_from(NAMES) | st.text("ab/+#$%cué", max_size=4)
filters = (
    st.lists(st.sampled_from(LEVELS) | st.sampled_from(WITH_NAMES), min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda name: topics.is_topic_filter(name.encode()))
)
rules = st.lists(
    st.builds(Rule, st.booleans(), st.sampled_from((READ, PUBLISH, READ | PUBLISH)), filters, st.booleans()), max_size=6
)
Key = tuple[tuple[bool, int, bytes], ...]


def first_level(topic_filter: str) -> str:
    """The first level of the topic, behind what may stand before it."""
    first, _, rest = topic_filter.partition("/")
    if first in ("$delayed", "$share", "$stream", "$tenant") and "/" in rest:
        return first_level(rest.partition("/")[2])
    return first


def model(given_rules: list[Rule], username: str | None, client_id: str) -> Key:
    """The topic filters of a client: nothing if the meaning of a rule that denies is unclear."""
    values = {"%c": client_id, "%u": username or ""}

    def filled(text: str) -> str:
        return MARK.sub(lambda mark: values[mark[0]], text)

    made = set()
    for allow, access, text, is_pattern in given_rules:
        used = [values[mark] for mark in MARK.findall(text)] if is_pattern else []
        if "" in used:
            continue
        first = first_level(text)
        opens = MARK.search(first) is not None and filled(first).startswith("$")
        if used and (opens or any(set(name) & set("+#/\0") for name in used)):
            if not allow:
                return ()
            continue
        made.add((allow, access, (filled(text) if used else text).encode()))
    return tuple(sorted(made))


def allows(key: Key, access: int, topic: str) -> bool:
    """Whether rules allow access to a topic."""
    hits = [allow for allow, what, name in key if what & access and topics.matches(name.decode(), topic)]
    return bool(hits) and all(hits)


@given(rules, names, names | st.none(), st.lists(st.lists(names | st.sampled_from(LEVELS), min_size=1, max_size=4)))
def test_rights_are_what_the_rules_say(
    given_rules: list[Rule], client_id: str, username: str | None, tried: list[list[str]]
) -> None:
    rights = rights_of(given_rules, username, client_id)
    expected = model(given_rules, username, client_id)
    assert rights.key == expected
    filled = [name.decode() for _, _, name in expected]
    for topic in (*map("/".join, tried), *filled, *(name.replace("+", "a").replace("#", "b/c") for name in filled)):
        if topic and not set(topic) & set("+#\0"):
            assert rights.may_publish(topic.encode()) == allows(expected, PUBLISH, topic)
            assert rights.may_read(topic.encode()) == allows(expected, READ, topic)


@given(filters, names, names, st.lists(names | st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join))
def test_a_name_opens_no_topic_beyond_one_level(topic_filter: str, client_id: str, username: str, tried: str) -> None:
    """Not by the model: a client may do no more than with a `+` in place of each level that has a name."""
    rights = rights_of([Rule(True, READ | PUBLISH, topic_filter, True)], username, client_id)
    wide = "/".join("+" if MARK.search(level) else level for level in topic_filter.split("/"))
    own = topic_filter
    for mark, name in (("%c", client_id), ("%u", username)):
        own = own.replace(mark, name) if "%" not in name else own
    for topic in (tried, own.replace("+", "a").replace("#", "b/c")):
        if topic and not set(topic) & set("+#\0") and rights.may_publish(topic.encode()):
            assert topics.matches(wide, topic)


@given(rules, names, names | st.none(), st.sampled_from(("$tenant/acme/", "$tenant/é/")))
def test_rights_below_a_prefix(given_rules: list[Rule], client_id: str, username: str | None, prefix: str) -> None:
    rights = rights_of(given_rules, username, client_id)
    below = rights.below(prefix.encode())
    assert below.key == tuple(sorted((allow, access, prefix.encode() + name) for allow, access, name in rights.key))
    assert below == rights.below(prefix.encode()) and hash(below) == hash(rights.below(prefix.encode()))
