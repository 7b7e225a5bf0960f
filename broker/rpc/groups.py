"""Shared subscriptions of this node, for the API."""

from typing import Any

from _speedups.session.group import Group
from broker.core.calls import Arguments
from broker.core.data_plane import DataPlane
from broker.rpc.paging import first

PREVIEW = 20  # oldest messages that `one` describes


def describe(group: Group) -> dict[str, Any]:
    """A group in a list."""
    share_name, _, topic_filter = group.name.decode().removeprefix("$share/").partition("/")
    return {
        "group": group.name.decode(),
        "name": share_name,
        "filter": topic_filter,
        "qos": group.qos,
        "members": len(group.members),
        "connected": sum(member.is_connected for member in group.members),
        "waiting": group.waiting,
        "waiting_bytes": group.waiting_size,
        "unacknowledged": sum(member.given_now for member in group.members),
        "given": group.given,
        "returned": group.returned,
    }


async def find(data_plane: DataPlane, arguments: Arguments) -> dict[str, Any]:
    """Groups in the order of their names: those that contain `search`, after `after`, `limit` of them."""
    wanted = arguments["search"].encode()
    found = await first(
        list(data_plane.router.filters.groups.values()),
        lambda group: wanted in group.name,
        lambda group: group.name,
        arguments["after"].encode(),
        arguments["limit"],
    )
    return {"items": [describe(group) for group in found.items], "total": found.total}


def one(data_plane: DataPlane, arguments: Arguments) -> dict[str, Any] | None:
    """The group `group`, with its members and its oldest messages."""
    group = data_plane.router.filters.groups.get(arguments["group"].encode())
    if group is None:
        return None
    members = [
        {
            "client_id": member.session.client_id.decode(),
            "connected": member.is_connected,
            "persistent": member.session.persistent,
            "qos": member.options & 3,
            "identifier": member.identifier or None,
            "unacknowledged": member.given_now,
        }
        for member in group.members
    ]
    oldest = [
        {"place": place, "topic": topic.decode(), "bytes": len(payload)}
        for place, topic, payload in group.messages(PREVIEW)
    ]
    return {**describe(group), "of": members[: arguments["limit"]], "oldest": oldest}


def purge(data_plane: DataPlane, arguments: Arguments) -> int | None:
    """Drop the messages that wait in the group `group`; returns their number, None: there is no such group."""
    group = data_plane.router.filters.groups.get(arguments["group"].encode())
    if group is None:
        return None
    dropped = group.purge()
    data_plane.end_turn()
    return dropped
