"""Figures of topic filters of the operator's choice: a meter each, which is a subscriber (`TopicMeter`)."""

from ..._speedups.routing.router import Router
from ..._speedups.session.topic_meter import TopicMeter


class TopicMeters:
    """The meters of a node.

    Args:
        router: of the node.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._meters: dict[str, TopicMeter] = {}

    def configure(self, topic_filters: tuple[str, ...]) -> None:
        """Count messages of these topic filters from now on; filters that stay keep their figures."""
        if tuple(self._meters) == topic_filters:
            return
        before, self._meters = self._meters, {}
        for name in topic_filters:
            meter = before.pop(name, None)
            if meter is None:
                meter = TopicMeter(self._router.turn)
                self._router.filters.subscribe(meter, name.encode(), 0)
            self._meters[name] = meter
        for name, meter in before.items():
            self._router.filters.unsubscribe(meter, name.encode())

    def __len__(self) -> int:
        return len(self._meters)

    def items(self) -> list[tuple[str, TopicMeter]]:
        """Topic filters and their meters, in the order of the configuration."""
        return list(self._meters.items())
