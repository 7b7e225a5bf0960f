"""Names of clients in topics of the configuration: none opens a topic that the configuration does not name."""

import pytest

from flockmq.broker.auth.rules import parse_rules, rights_of
from flockmq.broker.core.placeholders import filled_plainly

CLOSED = [
    ("%c/#", "$SYS"),
    ("%u/#", "$SYS"),
    ("%c/%u/#", "$share"),
    ("%c/5/x", "$delayed"),
    ("%c", "$stream"),
    ("$%c/#", "SYS"),
    ("$share/g/%c/#", "$SYS"),
    ("$delayed/5/%c/x", "$SYS"),
    ("$stream/5m/%u/#", "$SYS"),
    ("$tenant/acme/%c/#", "$SYS"),
    ("$tenant/acme/$share/g/%c/#", "$SYS"),
]
OPEN = [
    ("devices/%c/#", "$SYS", "devices/$SYS/#"),
    ("x%c/#", "$SYS", "x$SYS/#"),
    ("%c/#", "a$b", "a$b/#"),
    ("$SYS/broker/connection/%c/state", "c", "$SYS/broker/connection/c/state"),
    ("$share/%c/t", "g", "$share/g/t"),
    ("$SYS/#", "$SYS", "$SYS/#"),
]


@pytest.mark.parametrize(("text", "name"), CLOSED)
def test_a_name_makes_no_first_level_that_begins_with_a_dollar(text: str, name: str) -> None:
    assert filled_plainly(text, name, name) is None
    rules = parse_rules({"subscribe": [text]})
    assert rights_of(rules, name, name).key == ()


@pytest.mark.parametrize(("text", "name", "made"), OPEN)
def test_others_are_filled_in(text: str, name: str, made: str) -> None:
    assert filled_plainly(text, name, name) == made


def test_a_denial_that_can_not_be_filled_in_closes_all() -> None:
    assert rights_of(parse_rules(["topic read t", "pattern deny %c/#"]), "u", "$SYS").key == ()
