"""The match of topic filters and topic names, as plainly as section 4.7 has it: it judges brokers."""


def matches(topic_filter: str, topic_name: str) -> bool:
    """Whether the filter matches the name; both are valid."""
    if topic_name.startswith("$") and topic_filter.startswith(("+", "#")):
        return False  # [MQTT-4.7.2-1]
    return levels_match(topic_filter.split("/"), topic_name.split("/"))


def levels_match(topic_filter: list[str], topic_name: list[str]) -> bool:
    if topic_filter == ["#"]:
        return True  # all that is left, nothing included: `a/#` matches `a` [MQTT-4.7.1-2]
    if not topic_filter or not topic_name:
        return not topic_filter and not topic_name
    first, *others = topic_filter
    return (first == "+" or first == topic_name[0]) and levels_match(others, topic_name[1:])
