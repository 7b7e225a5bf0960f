"""Subscriptions that clients get when they connect."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..._speedups.net.connection import Connection
from ..config.link import LISTENER
from ..config.topic_rules import AutoSubscription
from .placeholders import filled_plainly
from .subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING_SHIFT


def subscriptions_of(rules: Iterable[AutoSubscription], connection: Connection, client_id: str) -> dict[str, int]:
    """The topic filters that the rules have for a client, with the options of the subscriptions.

    The first rule for a filter counts. A rule with %c or %u gives nothing to a client without that name, or with one
    that is not one level of a topic.
    """
    found: dict[str, int] = {}
    username = connection.identity.username
    for rule in rules:
        if connection.listener == LISTENER or (rule.listener and rule.listener != connection.listener):
            continue
        if rule.user and (username is None or not fnmatchcase(username, rule.user)):
            continue
        topic_filter = filled_plainly(rule.topic_filter, username, client_id)
        if topic_filter is not None:
            found.setdefault(topic_filter, _options(rule))
    return found


def _options(rule: AutoSubscription) -> int:
    options = rule.qos | rule.retain_handling << RETAIN_HANDLING_SHIFT
    return options | NO_LOCAL * rule.no_local | RETAIN_AS_PUBLISHED * rule.retain_as_published
