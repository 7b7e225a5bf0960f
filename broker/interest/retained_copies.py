"""Retained messages that came over a link, and that the other broker no longer keeps up to date."""

import asyncio

from ..._speedups.codec.properties import encode_block
from ..._speedups.codec.topics import matches
from ..config.link import HOP
from ..core.data_plane import DataPlane
from .interest import Watch

AT_ONCE = 200  # messages that are looked at before others have their turn


async def forget_copies(plane: DataPlane, dropped: list[str], watch: Watch, identity: str) -> None:
    """Remove retained messages that came from a broker.

    Args:
        plane: of the node.
        dropped: filters that are no longer asked for.
        watch: knows the wanted topics: their messages stay, also if one is asked for again.
        identity: of the broker.
    """
    mark = encode_block({"user_property": [(HOP, identity)]})
    for topic_filter in dropped:
        for number, (topic, _, _, properties, _) in enumerate(
            plane.router.retained.described(topic_filter.encode()), 1
        ):
            if mark in properties and not any(matches(other, topic) for other in watch.rows):
                plane.router.clear_retained(topic)
            if number % AT_ONCE == 0:
                plane.end_turn()
                await asyncio.sleep(0)
    plane.end_turn()
