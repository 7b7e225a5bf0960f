"""The health of this node."""

import asyncio
from typing import Any

from ..coordination.coordinator import Risk
from ..core.calls import Arguments
from ..doctor import Examined, examine
from ..errors import NotNow
from ..limits import LIMITS
from .limits import measure
from .node import figures
from .node_view import NodeView


async def find(view: NodeView, arguments: Arguments) -> dict[str, Any]:
    """Name and version of the node, and the results of all checks, the worst first."""
    broker, measured = view.broker, await measure(view)
    try:
        risks = await broker.coordinator.life.risks()
    except NotNow as error:
        risks = [Risk(f"the durability of Redis is unknown: {error}")]
    examined = Examined(
        config=view.config,
        version=view.version,
        keeps=broker.coordinator.life.describe(),
        ready=broker.ready(),
        risks=risks,
        uses=[row.read(measured) for row in LIMITS],
        figures=figures(view, arguments),
        oldest=broker.data_plane.stuck_sessions.longest(),
    )
    results = [result._asdict() for result in await asyncio.to_thread(examine, examined)]
    return {"name": view.name, "version": view.version, "results": results}
