"""Topic filters in plain Python, for executors without compiled modules: a few per block of messages."""

from collections.abc import Sequence

CACHE_LIMIT = 100_000  # topic names


def check_topic_filter(topic_filter: str) -> str:
    """The filter itself. Raises ValueError: the words complete the sentence "expected ..."."""
    levels = topic_filter.split("/")
    if not topic_filter or "\0" in topic_filter:
        raise ValueError("a topic filter, such as site/#")
    if "#" in "".join(levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        raise ValueError("# alone in the last level of a topic filter")  # [MQTT-4.7.1-2]
    if any("+" in level and level != "+" for level in levels):
        raise ValueError("+ alone in a level of a topic filter")  # [MQTT-4.7.1-3]
    return topic_filter


def matches(topic_filter: str, topic_name: str) -> bool:
    """Whether a valid filter matches a name."""
    wanted, levels = topic_filter.split("/"), topic_name.split("/")
    if levels[0].startswith("$") and wanted[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    if wanted[-1] == "#":
        wanted.pop()  # matches the parent level too
        levels = levels[: len(wanted)] if len(levels) >= len(wanted) else levels
    return len(levels) == len(wanted) and all(map(_matches_level, wanted, levels))


def _matches_level(wanted: str, level: str) -> bool:
    return wanted in ("+", level)


class TopicFilters:
    """Whether any of some filters matches; results are cached, because blocks repeat the same topics."""

    def __init__(self, topic_filters: Sequence[str]) -> None:
        self._filters = topic_filters
        self._known: dict[str, bool] = {}

    def matches(self, topic_name: str) -> bool:
        """Whether one of them matches a name."""
        known = self._known.get(topic_name)
        if known is None:
            if len(self._known) >= CACHE_LIMIT:
                self._known.clear()
            known = any(matches(topic_filter, topic_name) for topic_filter in self._filters)
            self._known[topic_name] = known
        return known
