"""Reads the log of messages of a node, or of its cluster, over HTTP: `flockmq.read_log`, `flockmq.follow_log`."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from flockmq.broker.client.log_client import LogClient, LogRefused, LogUnreachable, MessagesMissing

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogRefused", "LogUnreachable", "MessagesMissing", "follow_log", "read_log"]


def read_log(
    url: str,
    filter: str | Sequence[str] = "#",  # noqa: A002, the word of MQTT
    since: str | datetime = "1 h ago",
    until: str | datetime | None = None,
    *,
    username: str | None = None,
    password: str | None = None,
    token: str | None = None,
) -> "pa.Table":
    """The messages that are in the log, as a pyarrow table.

    Args:
        url: of a node: http://HOST:PORT, or https://HOST:PORT.
        filter: a topic filter, or several.
        since: messages that the broker accepted then or later: "10 min ago", "today 08:00", "2026-01-31T08:00Z", or a
            datetime; "earliest": all.
        until: messages that it accepted before; None: no limit.
        username, password: of an MQTT user.
        token: of the API, or a JSON Web Token that the broker accepts.

    Returns:
        A row for each message, in the order of each node's log. Columns: node, accepted_at, client_id, topic, qos,
        retain, dup, payload, properties.

    Raises:
        LogUnreachable: the node can't be reached.
        LogRefused: the node refuses the request.
        MessagesMissing: messages were deleted from the log while it was read.
        FlockError: the URL is wrong, or pyarrow is not installed.
    """
    return LogClient(url, _filters(filter), since, until, username=username, password=password, token=token).read()


def follow_log(
    url: str,
    filter: str | Sequence[str] = "#",  # noqa: A002, the word of MQTT
    since: str | datetime = "now",
    position: Mapping[str, str] | None = None,
    *,
    username: str | None = None,
    password: str | None = None,
    token: str | None = None,
) -> Iterator[tuple["pa.Table", dict[str, str]]]:
    """The messages of the log, and for ever those that follow. A node that is away is asked again each second.

    Args:
        url, filter, since, username, password, token: as for `read_log`.
        position: where to go on: behind the messages that came with it. None: at `since`.

    Yields:
        Messages as a pyarrow table, and the position behind them. A program that stores both at once gets each message
        once. The table is empty if only the position has changed.

    Raises:
        LogUnreachable: the first request does not reach the node.
        LogRefused: the node refuses a request.
        MessagesMissing: messages behind the position are gone; `position` of the error is behind the gap.
        FlockError: the URL is wrong, or pyarrow is not installed.
    """
    client = LogClient(url, _filters(filter), since, username=username, password=password, token=token)
    return ((part.rows, part.position) for part in client.follow(position))


def _filters(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given
