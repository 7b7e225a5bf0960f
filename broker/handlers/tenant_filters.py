"""Topic filters of tenants' clients, as the broker has them: with the prefix of the tenant."""

from ..._speedups.codec.topics import InvalidTopic, is_shared, split_shared
from ..core import tenants
from ..streams.since import PREFIX as STREAM
from ..streams.since import is_stream, split_stream


def qualified(client_id: bytes, topic_filter: str) -> str:
    """The filter within the broker of a client's subscription; one that is not valid may stay as it is."""
    prefix, _ = tenants.split(client_id)
    if not prefix or not topic_filter:
        return topic_filter
    try:
        if is_shared(topic_filter):
            group, read = split_shared(topic_filter)
            return topic_filter if is_stream(read) else f"$share/{group}/{prefix}{read}"
        if is_stream(topic_filter):
            since, read = split_stream(topic_filter)
            return f"{STREAM}{since}/{prefix}{read}"
    except (InvalidTopic, ValueError):
        return topic_filter
    return prefix + topic_filter
