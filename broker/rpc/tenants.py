"""Tenants that this node has seen, and their figures."""

from typing import Any

from ..core.calls import Arguments
from ..core.data_plane import DataPlane
from ..metrics import TENANT_FIGURES
from .paging import first


async def find(data_plane: DataPlane, arguments: Arguments) -> dict[str, Any]:
    """Figures by name of tenant, in the order of the names.

    Arguments: `prefix` (of one tenant; empty: of all), `after` (a name), `limit`.
    """
    known, prefix = data_plane.turn.tenants, arguments["prefix"].encode()
    one = known.get(prefix)
    tenants = list(known) if not prefix else [] if one is None else [one]
    found = await first(
        tenants, lambda tenant: True, lambda tenant: tenant.name, arguments["after"], arguments["limit"]
    )
    return {tenant.name: {name: getattr(tenant, name) for name, _, _ in TENANT_FIGURES} for tenant in found.items}
