"""The check of a right says what the rules enforce, and names the rule."""

import random
from pathlib import Path

import pytest

from flockmq.broker.auth.acl_file import AclFile
from flockmq.broker.auth.right_check import Action, Decision, Place, decide, text_of
from flockmq.broker.auth.rules import ACCESS, KINDS, parse_rule, rights_of

LEVELS = ("a", "b", "+", "%c", "%u", "$x")
NAMES = (("ada", "c1"), (None, "c1"), ("a/b", "c1"), ("#", "+"), ("$x", "a"), ("a", "b"))


YES = "a rule allows it"


def at(line: int) -> Place:
    return Place("file", "", line)


def random_filter(rng: random.Random, *, wild: bool) -> str:
    possible = LEVELS if wild else tuple(level for level in LEVELS if level not in ("+", "%c", "%u"))
    levels = [rng.choice(possible) for _ in range(rng.randint(1, 3))]
    if wild and rng.random() < 0.4:
        levels[-1] = "#"
    return "/".join(levels)


def test_the_check_agrees_with_the_rights_that_are_enforced() -> None:
    rng = random.Random(20261129)
    seen = set()
    for _ in range(3000):
        rules = [
            parse_rule(f"{rng.choice(KINDS)} {rng.choice(tuple(ACCESS))} {random_filter(rng, wild=True)}")
            for _ in range(rng.randint(0, 4))
        ]
        username, client_id = rng.choice(NAMES)
        rights = rights_of(rules, username, client_id)
        placed = [(Place("user", "x", number), rule) for number, rule in enumerate(rules)]
        topic, topic_filter = random_filter(rng, wild=False), random_filter(rng, wild=True).replace("%", "")
        for action, name, allowed in (
            (Action.PUBLISH, topic, rights.may_publish(topic.encode())),
            (Action.READ, topic, rights.may_read(topic.encode())),
            (Action.SUBSCRIBE, topic_filter, rights.may_subscribe(topic_filter.encode())),
        ):
            found = decide(placed, username, client_id, action, name)
            assert found.allowed == allowed, (rules, username, client_id, action, name, found)
            seen.add((action, allowed, found.reason))
            if found.place is not None:
                assert found.rule == text_of(rules[found.place.line])
                assert found.rule.partition(" ")[2].startswith("deny") != found.allowed
    assert len(seen) >= 12, seen


@pytest.mark.parametrize(
    ("action", "topic", "wanted"),
    [
        ("publish", "engine/1", Decision(True, YES, "topic readwrite engine/#", at(4))),
        ("publish", "engine/secret", Decision(False, "a rule denies it", "topic deny engine/secret", at(5))),
        ("read", "devices/c1/x", Decision(True, YES, "pattern read devices/%c/#", at(1))),
        ("subscribe", "#", Decision(True, f"{YES} for a part of the messages", "pattern read devices/%c/#", at(1))),
        ("read", "public", Decision(False, "no rule allows it")),
    ],
)  # fmt: skip
def test_a_rule_of_a_file_has_its_line(action: str, topic: str, wanted: Decision, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(
        "pattern read devices/%c/#\ntopic read public\nuser ada\ntopic engine/#\ntopic deny engine/secret\n"
    )
    file = AclFile(str(tmp_path / "acl"))
    placed = [(Place("file", "", line), rule) for line, rule in file.numbered(file.section("ada"))]
    assert decide(placed, "ada", "c1", Action(action), topic) == wanted


def test_rules_with_the_client_id_need_a_client() -> None:
    placed = [(Place("user", "ada"), parse_rule("pattern write devices/%c/#"))]
    found = decide(placed, "ada", "", Action.PUBLISH, "devices/c1/x")
    assert not found.allowed and "check a connected client" in found.reason
    assert decide(placed, "ada", "c2", Action.PUBLISH, "devices/c1/x") == Decision(False, "no rule allows it")
