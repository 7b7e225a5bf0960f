"""Topic filters in Spark, as regular expressions for topic names; the rules are as in `topic_filter`."""

import re


def pattern(topic_filter: str) -> str:
    """A regular expression, for Java, that finds exactly the topic names that match a valid filter."""
    levels = topic_filter.split("/")
    above = levels[-1] == "#"
    if above:
        del levels[-1]
    start = r"^(?!\$)" if topic_filter[0] in "+#" else "^"  # [MQTT-4.7.2-1]
    body = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    if not above:
        return rf"{start}{body}\z"
    return rf"{start}{body}(/|\z)" if levels else start
