"""Full queues: one warning per session when an episode of dropped messages begins, one line when it ends."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .. import logs

EPISODE_SECONDS = 10.0  # without a dropped message, after which the episode of a session ends
MAX_EPISODES = 1000  # at a time; drops of further sessions are only counted

log = logs.get("flockmq.queues")


@dataclass(slots=True)
class Episode:
    """A time in which messages for a session are dropped."""

    began: float
    last: float
    dropped: int


class FullQueues:
    """Logs the messages that this node dropped at full queues, its own and those in Redis.

    Args:
        limits: returns the limits of a queue: messages, bytes, and whether the oldest message is dropped.
    """

    def __init__(self, limits: Callable[[], tuple[int, int, bool]]) -> None:
        self._limits = limits
        self._episodes: dict[bytes, Episode] = {}

    def dropped(self, by_client: Mapping[bytes, int]) -> None:
        """Messages were dropped: client id -> their number."""
        now = time.monotonic()
        for client_id, count in by_client.items():
            episode = self._episodes.get(client_id)
            if episode is not None:
                episode.last = now
                episode.dropped += count
            elif len(self._episodes) < MAX_EPISODES:
                self._episodes[client_id] = Episode(now, now, count)
                max_messages, max_bytes, drop_oldest = self._limits()
                log.warning(
                    "queue is full: messages are dropped",
                    client_id=logs.as_text(client_id),
                    max_queued_messages=max_messages,
                    max_queued_bytes=max_bytes,
                    policy="drop-old" if drop_oldest else "drop-new",
                )

    def tick(self, now: float) -> None:
        """End the episodes in which no message was dropped lately."""
        over = [client_id for client_id, episode in self._episodes.items() if now - episode.last >= EPISODE_SECONDS]
        for client_id in over:
            self._end(client_id)

    def close(self) -> None:
        """The node stops: end all episodes."""
        for client_id in list(self._episodes):
            self._end(client_id)

    def _end(self, client_id: bytes) -> None:
        episode = self._episodes.pop(client_id)
        log.warning(
            "queue is no longer dropping messages",
            client_id=logs.as_text(client_id),
            dropped=episode.dropped,
            seconds=round(episode.last - episode.began, 1),
        )
