"""What analytics jobs tell clients: retained messages below $SYS/analytics/, which every node publishes by itself."""

from _speedups.codec.topics import InvalidTopic, validate_topic_name
from broker import logs
from broker.core.data_plane import DataPlane

ROOT = b"$SYS/analytics/"

log = logs.get("flockmq.cluster")


class Results:
    """The results as this node has published them.

    Args:
        data_plane: of the node.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._published: dict[bytes, bytes] = {}

    def take(self, topic: bytes, payload: bytes) -> None:
        """Publish a result; an empty payload removes the one that was there."""
        name = ROOT + topic
        try:
            validate_topic_name(name)
        except InvalidTopic as fault:
            log.warning("a result of analytics has no topic name", topic=topic, reason=fault)
            return
        if payload:
            self._published[topic] = payload
        else:
            self._published.pop(topic, None)
        self._data_plane.router.publish(name, payload, 0, True)

    def replace(self, results: dict[bytes, bytes]) -> None:
        """These are the results there are; publish what differs from those before."""
        for topic in self._published.keys() - results.keys():
            self.take(topic, b"")
        for topic, payload in results.items():
            if self._published.get(topic) != payload:
                self.take(topic, payload)
