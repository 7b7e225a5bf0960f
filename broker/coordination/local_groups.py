"""The shared subscriptions of a node alone."""

from ..config.declared_group import DeclaredGroup
from ..config.schema import Config
from ..core.data_plane import DataPlane
from ..core.group_settings import settings_of
from .coordinator import Groups


class LocalGroups(Groups):
    """The groups of the node; no message of them waits elsewhere.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._filters = data_plane.router.filters

    def declare_configured(self, config: Config) -> None:
        """Declare the groups of the configuration."""
        for group in config.shared.groups:
            self._declare(group)

    def _declare(self, group: DeclaredGroup) -> None:
        filters, turn, name = self._filters, self._data_plane.turn, group.name.encode()
        known = filters.groups.get(name)
        if known is None or known.settings.declaration != group.stored:
            filters.declare(turn, name, settings_of(group.stored, turn.shared))

    async def waiting(self, groups: list[bytes]) -> dict[bytes, tuple[int, int]]:
        return {}

    async def purge(self, name: bytes) -> int:
        dropped = self._filters.groups[name].purge()
        self._data_plane.end_turn()
        return dropped

    async def declare(self, group: DeclaredGroup) -> None:
        self._declare(group)
        await self._data_plane.stored()

    async def remove(self, name: bytes) -> int | None:
        dropped = self._filters.undeclare(name)
        await self._data_plane.stored()
        return dropped
