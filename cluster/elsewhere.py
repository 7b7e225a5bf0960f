"""In place of parts that only the first shard has: users, results of analytics, the log of messages."""

from collections.abc import Mapping


class Elsewhere:
    """Does nothing: the first shard does it."""

    async def load(self) -> None:
        """As `RedisAccess.load`."""

    def link_back(self) -> None:
        """As `RedisAccess.link_back`."""

    def receive(self, *fields: object) -> None:
        """As `RedisAccess.receive`."""

    def replace(self, results: Mapping[bytes, bytes]) -> None:
        """As `AnalyticsResults.replace`."""

    def publish(self, *fields: object) -> None:
        """As `AnalyticsResults.publish`."""

    def configure(self) -> None:
        """As `LoggedMessages.configure`."""
