"""Results of analytics jobs: retained messages below $SYS/analytics/, which every node publishes to its own clients."""

from ..._speedups.codec.topics import InvalidTopic, validate_topic_name
from ..._speedups.routing.router import Router
from ...broker import logs

ROOT = b"$SYS/analytics/"

log = logs.get("flockmq.cluster")


class AnalyticsResults:
    """The results that this node has published.

    Args:
        router: of the node.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._published: dict[bytes, bytes] = {}

    def publish(self, topic: bytes, payload: bytes) -> None:
        """Publish a result; an empty payload removes it."""
        name = ROOT + topic
        try:
            validate_topic_name(name)
        except InvalidTopic as fault:
            log.warning("invalid topic name of an analytics result", topic=topic, reason=fault)
            return
        if payload:
            self._published[topic] = payload
        else:
            self._published.pop(topic, None)
        self._router.publish(name, payload, 0, True)

    def replace(self, results: dict[bytes, bytes]) -> None:
        """Make these the published results; publish the difference."""
        for topic in self._published.keys() - results.keys():
            self.publish(topic, b"")
        for topic, payload in results.items():
            if self._published.get(topic) != payload:
                self.publish(topic, payload)
