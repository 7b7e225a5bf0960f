"""Topic filters in Spark: which topic names match, as a regular expression.

The rules are those of MQTT 3.1.1, 4.7: `+` is one level, `#` at the end is all below and the level above, and neither
at the beginning matches a topic name that begins with `$`.
"""

import re


def validate(topic_filter: str) -> str:
    """The filter itself.

    Raises:
        ValueError: it isn't one.
    """
    levels = topic_filter.split("/")
    wrong = (
        not topic_filter
        or "\0" in topic_filter
        or any(("+" in level or "#" in level) and len(level) > 1 for level in levels)
        or "#" in levels[:-1]
    )
    if wrong:
        raise ValueError(f"{topic_filter!r} is no topic filter")
    return topic_filter


def pattern(topic_filter: str) -> str:
    """A regular expression, for Java, that finds exactly the topic names that match."""
    levels = topic_filter.split("/")
    above = levels[-1] == "#"
    if above:
        del levels[-1]
    start = r"^(?!\$)" if topic_filter[0] in "+#" else "^"
    body = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    if not above:
        return rf"{start}{body}\z"
    return rf"{start}{body}(/|\z)" if levels else start
