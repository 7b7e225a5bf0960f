"""The check whether a client may publish or read a topic, with the rule that decides and the place of this rule."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from ..._speedups.session.rights import PUBLISH, READ, Rights, covers, overlap
from .rules import ACCESS, NOTHING, Rule, RuleSet


class Action(StrEnum):
    """What a client wants to do."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    READ = "read"


class Place(NamedTuple):
    """Where a rule stands."""

    kind: str  # "file", "role", "user", or the name of another authentication method
    name: str = ""  # path of the file, name of the role or the user
    line: int = 0  # of the file; 0 = it has no lines


Placed = tuple[Place, Rule]


class Decision(NamedTuple):
    """The result of a check."""

    allowed: bool
    reason: str
    rule: str = ""  # as in an ACL file; empty = none decides
    place: Place | None = None  # of the rule


def text_of(rule: Rule) -> str:
    """A rule as a line of an ACL file."""
    words = {access: word for word, access in ACCESS.items() if word != "deny"}
    access = words[rule.access] if rule.allow else "deny"
    return f"{'pattern' if rule.is_pattern else 'topic'} {access} {rule.topic_filter}"


def decide(rules: Iterable[Placed], username: str | None, client_id: str, action: Action, topic: str) -> Decision:
    """The decision over a client by its rules.

    Args:
        rules: all rules of the client, with their places.
        username: of the client; None: it is anonymous.
        client_id: of the client; empty: the check is for a user, and rules with %c can't be judged.
        action: of the client.
        topic: a topic name; to subscribe, a topic filter without `$share`.
    """
    wanted, name = PUBLISH if action == Action.PUBLISH else READ, topic.encode()
    allows: list[tuple[Placed, bytes]] = []
    denies: list[tuple[Placed, bytes]] = []
    is_by_client = False
    for placed in rules:
        is_by_client |= placed[1].allow and placed[1].is_pattern and "%c" in placed[1].topic_filter
        rights = RuleSet([placed[1]]).rights(username, client_id)
        if rights is NOTHING:
            reason = "the rule needs a name that is no single level of a topic: so the client may do nothing"
            return Decision(False, reason, text_of(placed[1]), placed[0])
        for allow, access, topic_filter in rights.key:
            if access & wanted:
                (allows if allow else denies).append((placed, topic_filter))
    for (place, rule), topic_filter in denies:
        if covers(topic_filter, name) if action == Action.SUBSCRIBE else _matches(topic_filter, name):
            return Decision(False, "a rule denies it", text_of(rule), place)
    for (place, rule), topic_filter in allows:
        if overlap(topic_filter, name) if action == Action.SUBSCRIBE else _matches(topic_filter, name):
            is_whole = action != Action.SUBSCRIBE or Rights(
                [(rule.allow, READ, found) for (_, rule), found in (*allows, *denies)]
            ).may_read_all(name)
            reason = "a rule allows it" if is_whole else "a rule allows it for a part of the messages"
            return Decision(True, reason, text_of(rule), place)
    hint = "; a rule with %c may, for a client id: check a connected client"
    return Decision(False, f"no rule allows it{hint if is_by_client and not client_id else ''}")


def _matches(topic_filter: bytes, name: bytes) -> bool:
    return Rights([(True, READ, topic_filter)]).may_read(name)
