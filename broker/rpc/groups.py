"""Shared subscriptions of this node, for the API."""

import json
from typing import Any

from ..._speedups.codec.topics import split_shared
from ..._speedups.session.group import Group
from ..coordination.coordinator import Groups
from ..core.calls import Arguments
from ..core.data_plane import DataPlane
from .paging import first, in_scope

PREVIEW = 20  # oldest messages that `one` describes


def describe(group: Group, stored: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """A group as this node has it, with the messages and bytes that wait elsewhere."""
    share_name, topic_filter = split_shared(group.name.decode())
    persistent = sum(subscriber.session.persistent for subscriber in group.subscribers)
    return {
        "group": group.name.decode(),
        "name": share_name,
        "filter": topic_filter,
        "qos": group.qos,
        "persistent": persistent,
        "clean": len(group.subscribers) - persistent,
        "connected": sum(subscriber.is_connected for subscriber in group.subscribers),
        "waiting": group.waiting + stored[0],
        "waiting_bytes": group.waiting_size + stored[1],
        "unacknowledged": sum(subscriber.given_now for subscriber in group.subscribers),
        "given": group.given,
        "returned": group.returned,
        "declared": group.settings.declared,
        "settings": settings_of(group),
        "own": sorted(json.loads(group.settings.declaration)) if group.settings.declared else [],
    }


def settings_of(group: Group) -> dict[str, Any]:
    """The settings that hold for the group, by the names that they have in a declaration."""
    settings = group.settings
    return {
        "window": settings.window,
        "max_queued_messages": settings.max_messages,
        "max_queued_bytes": settings.max_bytes,
        "when_full": "drop-old" if settings.drop_oldest else "drop-new",
        "expiry": settings.max_expiry,
        "last_value": settings.last_value,
        "strategy": settings.strategy,
        "max_deliveries": settings.max_deliveries,
        "dead_letter_topic": settings.dead_letter_topic.decode(),
        "paused": settings.paused,
    }


async def find(data_plane: DataPlane, stored: Groups, arguments: Arguments) -> dict[str, Any]:
    """Groups in the order of their names, which contain `search`: after `after`, `limit` of them.

    Only groups whose topic filter is in the scope.
    """
    wanted, is_own = arguments["search"].encode(), in_scope(arguments)
    found = await first(
        list(data_plane.router.filters.groups.values()),
        lambda group: wanted in group.name and is_own(split_shared(group.name.decode())[1].encode()),
        lambda group: group.name,
        arguments["after"].encode(),
        arguments["limit"],
    )
    waiting = await stored.waiting([group.name for group in found.items])
    items = [describe(group, waiting.get(group.name, (0, 0))) for group in found.items]
    return {"items": items, "total": found.total}


async def one(data_plane: DataPlane, stored: Groups, arguments: Arguments) -> dict[str, Any] | None:
    """The group `group`, with its subscribers and its oldest messages here."""
    group = data_plane.router.filters.groups.get(arguments["group"].encode())
    if group is None:
        return None
    subscribers = [
        {
            "client_id": subscriber.session.client_id.decode(),
            "connected": subscriber.is_connected,
            "persistent": subscriber.session.persistent,
            "qos": subscriber.options & 3,
            "identifier": subscriber.identifier or None,
            "unacknowledged": subscriber.given_now,
        }
        for subscriber in group.subscribers
    ]
    oldest = [
        {"place": place, "topic": topic.decode(), "bytes": len(payload)}
        for place, topic, payload in group.messages(PREVIEW)
    ]
    waiting = await stored.waiting([group.name])
    described = describe(group, waiting.get(group.name, (0, 0)))
    return {**described, "sessions": subscribers[: arguments["limit"]], "oldest": oldest}
