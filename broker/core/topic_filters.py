"""The parts of a topic filter (`$share/NAME/FILTER`, `$stream/SINCE/FILTER`), and the place of a tenant's prefix."""

from typing import NamedTuple

from ..._speedups.codec.topics import is_shared, split_shared
from . import tenants

STREAM = "$stream/"


class Parts(NamedTuple):
    """A topic filter as a client writes it."""

    share: str  # NAME of a shared subscription, or empty
    since: str  # SINCE of a stream, or empty
    messages: str  # the topic filter of the messages

    def __str__(self) -> str:
        if self.share:
            return f"$share/{self.share}/{self.messages}"
        return f"{STREAM}{self.since}/{self.messages}" if self.since else self.messages


def is_stream(topic_filter: str) -> bool:
    """Whether a topic filter is one of a stream, a valid one or not."""
    return topic_filter.startswith(STREAM)


def parts_of(topic_filter: str) -> Parts:
    """The parts of a topic filter; SINCE and FILTER are not checked.

    Raises:
        ValueError: it begins as a shared subscription or as a stream, and is none.
    """
    if is_shared(topic_filter):
        share, messages = split_shared(topic_filter)
        if is_stream(messages):
            raise ValueError("a stream can't be shared")
        return Parts(share, "", messages)
    if is_stream(topic_filter):
        since, _, messages = topic_filter.removeprefix(STREAM).partition("/")
        if not since or not messages:
            raise ValueError("a stream is $stream/SINCE/FILTER, such as $stream/10m/site/#")
        return Parts("", since, messages)
    return Parts("", "", topic_filter)


def qualified(client_id: bytes, topic_filter: str) -> str:
    """The filter within the broker of a client's subscription; one that is not valid stays as it is, and is refused."""
    prefix, _ = tenants.split(client_id)
    if not prefix or not topic_filter:
        return topic_filter
    try:
        parts = parts_of(topic_filter)
    except ValueError:
        return topic_filter
    return str(parts._replace(messages=prefix + parts.messages))


def is_of_tenant(client_id: bytes, messages: str) -> bool:
    """Whether a client may name the filter of messages within the broker: of its tenant, if it has one."""
    prefix, _ = tenants.split(client_id)
    return messages.startswith(prefix) and not messages.removeprefix(prefix).startswith(tenants.ROOT)


def max_levels(client_id: bytes, limit: int) -> int:
    """The largest number of levels of a client's topic filter within the broker; `limit` is as the client has it."""
    return limit + tenants.LEVELS * client_id.startswith(tenants.ROOT.encode())
