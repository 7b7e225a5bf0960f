"""The settings of a declared group: its own, and from `[shared]` for the rest."""

import json
import math
from typing import Any

from ..._speedups.routing.router import Router
from ..._speedups.session.group_settings import STRATEGIES, GroupSettings


def settings_of(declaration: bytes, node: GroupSettings) -> GroupSettings:
    """The settings of a group that was declared with these.

    Args:
        declaration: as `flockmq.broker.config.declared_group` writes it. Settings that this version lacks are ignored.
        node: the settings of groups that are not declared.

    Raises:
        ValueError: the declaration can't be read.
    """
    settings = GroupSettings(declaration=declaration)
    settings.set(**_values(declaration, node))
    return settings


def refresh(router: Router, node: GroupSettings) -> None:
    """The settings of the node have changed: declared groups have them where their declaration has none."""
    for group in router.filters.groups.values():
        if group.settings.declared:
            group.settings.set(**_values(group.settings.declaration, node))


def _values(declaration: bytes, node: GroupSettings) -> dict[str, Any]:
    options = json.loads(declaration)
    strategy, when_full = options.get("strategy"), options.get("when_full")
    dead_letters = options.get("dead_letter_topic")
    return {
        "window": options.get("window", node.window),
        "max_messages": options.get("max_queued_messages", node.max_messages),
        "max_bytes": options.get("max_queued_bytes", node.max_bytes),
        "drop_oldest": node.drop_oldest if when_full is None else when_full == "drop-old",
        "strategy": strategy if strategy in STRATEGIES else node.strategy,
        "max_expiry": math.ceil(options["expiry"]) if "expiry" in options else node.max_expiry,
        "last_value": options.get("last_value", node.last_value),
        "max_deliveries": options.get("max_deliveries", node.max_deliveries),
        "paused": options.get("paused", False),
        "dead_letter_topic": node.dead_letter_topic if dead_letters is None else dead_letters.encode(),
    }
