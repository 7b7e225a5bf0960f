"""Rewrite rules: the parts of a topic that wildcards stand for, and the topics that are made of them."""

import pytest

from flockmq.broker.config.topic_rules import RewriteRule
from flockmq.broker.core.rewriter import NO_TOPIC, compiled


def rewritten(source: str, target: str, topic: str, username: str | None = "ada") -> str | None:
    """The topic in place of another one; None: the rule does not match."""
    rule = compiled(RewriteRule(source, target))
    parts = rule.parts(topic.split("/"))
    return None if parts is None else rule.fill(parts, username, "c1")


@pytest.mark.parametrize(
    ("source", "target", "topic", "made"),
    [
        ("a/b", "x", "a/b", "x"),
        ("a/b", "x", "a/b/c", None),
        ("a/b", "x", "a", None),
        ("a/+", "x/$1", "a/b", "x/b"),
        ("a/+", "x/$1", "a/", "x/"),
        ("a/+/+", "$2/$1", "a/b/c", "c/b"),
        ("+/+", "$1-$2/$1", "a/b", "a-b/a"),
        ("a/#", "x/$1", "a/b/c", "x/b/c"),
        ("a/#", "x/$1", "a/", "x/"),
        ("a/#", "x/$1", "a", "x"),  # `#` is for the level above, too
        ("a/#", "x-$1", "a", "x-"),
        ("a/+/#", "x/$2/$1", "a/b", "x/b"),
        ("a/#", "x", "a/b", "x"),
        ("a/#", "$SYS/$1", "a/b", "$SYS/b"),
        # Topic filters of subscriptions: a wildcard of the rule stands for one of the filter that is no wider.
        ("a/+/#", "x/$1/$2", "a/+/#", "x/+/#"),
        ("a/#", "x/$1", "a/#", "x/#"),
        ("a/+", "x/$1", "a/#", None),
        ("a/b", "x", "a/+", None),
        ("a/b/#", "x", "a/#", None),
        ("a/#", "x/$1", "#", None),
        # A wildcard at the front stands for nothing that begins with $.
        ("#", "x", "$SYS/broker", None),
        ("+/broker", "x", "$SYS/broker", None),
        ("$SYS/#", "sys/$1", "$SYS/broker", "sys/broker"),
        ("a/#", "%u/%c/$1", "a/b", "ada/c1/b"),
        ("a/#", "%u/%c/$1", "a/%c", "ada/c1/%c"),  # names of the client are not put into its topics
    ],
)
def test_what_a_rule_makes(source: str, target: str, topic: str, made: str | None) -> None:
    assert rewritten(source, target, topic) == made


@pytest.mark.parametrize("username", [None, "", "a/b", "+", "#"])
def test_a_name_that_is_not_one_level_makes_no_topic(username: str | None) -> None:
    assert rewritten("a/#", "%u/$1", "a/b", username) == NO_TOPIC
    assert rewritten("a/#", "%c/$1", "a/b", username) == "c1/b"
