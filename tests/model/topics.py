"""Owns: topic names, topic filters and their match, as plainly as section 4.7 puts them. Judges the compiled code.

A name or filter is a list of levels here and nothing is cached. Slow on purpose.
"""


def is_text(data: bytes) -> bool:
    """Well-formed UTF-8 without U+0000 [MQTT-1.5.3-1] [MQTT-1.5.3-2]."""
    try:
        return "\0" not in data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False


def is_common(data: bytes, level: int, max_levels: int) -> bool:
    """What names and filters share: section 4.7.3, and the shorter limit of level 3."""
    return (
        0 < len(data) <= 65535
        and is_text(data)
        and (level != 3 or len(data.decode()) <= 32767)
        and len(data.split(b"/")) <= max_levels
    )


def is_topic_name(data: bytes, level: int = 4, max_levels: int = 200) -> bool:
    """Whether `data` is a topic name [MQTT-3.3.2-2]."""
    return is_common(data, level, max_levels) and b"+" not in data and b"#" not in data


def is_topic_filter(data: bytes, level: int = 4, max_levels: int = 200) -> bool:
    """Whether `data` is a topic filter [MQTT-4.7.1-2] [MQTT-4.7.1-3]."""
    if not is_common(data, level, max_levels):
        return False
    *parents, last = data.split(b"/")
    plus_alone = all(one == b"+" or b"+" not in one for one in [*parents, last])
    hash_last = all(b"#" not in one for one in parents) and (last == b"#" or b"#" not in last)
    return plus_alone and hash_last


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
