"""Dead letters: messages that no subscriber of a shared subscription acknowledges go to a topic of the operator's
choice.

The payload and the properties are the message's. User properties with the names below have its history.
"""

import time
from dataclasses import dataclass

from ..._speedups.codec.errors import InvalidPacket
from ..._speedups.codec.properties import decode_block, encode_block
from ..._speedups.codec.reason_codes import ReasonCode
from ..._speedups.codec.topics import split_tenant
from ..._speedups.routing.router import Router
from ..._speedups.session.dead_letter import DeadLetter
from .. import logs

LARGEST = 268_000_000  # bytes of a message with its history; a packet can have a few more
EPISODE_SECONDS = 10.0  # without a dead letter, after which the episode of a group ends
MAX_EPISODES = 1000  # at a time; dead letters of further groups are only counted

GROUP = "dead-letter-group"
TOPIC = "dead-letter-topic"
DELIVERIES = "dead-letter-deliveries"
REASON = "dead-letter-reason"

log = logs.get("flockmq.queues")


@dataclass(slots=True)
class Episode:
    """A time in which a group has dead letters."""

    began: float
    last: float
    count: int


class DeadLetters:
    """Publishes dead letters, and logs one warning per group when an episode begins, and one line when it ends.

    Args:
        router: of this node; its turn calls `publish`.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._episodes: dict[bytes, Episode] = {}
        router.turn.set_dead_letters(self.publish)

    def publish(self, letter: DeadLetter) -> None:
        """Publish a dead letter. It is dropped if there is no topic for it, or if it was published there before."""
        self._note(letter)
        prefix, _ = split_tenant(letter.topic)
        to = letter.to if letter.to.startswith(prefix) else prefix + letter.to
        if not letter.to or to == letter.topic:
            return
        try:
            properties = with_history(letter)
        except InvalidPacket:  # it has as many user properties as a message may
            properties = letter.properties
        if len(to) + len(properties) + len(letter.payload) > LARGEST:
            properties = letter.properties
        self._router.publish(to, letter.payload, letter.qos, False, None, properties)

    def _note(self, letter: DeadLetter) -> None:
        now = time.monotonic()
        episode = self._episodes.get(letter.group)
        if episode is not None:
            episode.last = now
            episode.count += 1
        elif len(self._episodes) < MAX_EPISODES:
            self._episodes[letter.group] = Episode(now, now, 1)
            log.warning(
                "a shared subscription has dead letters: its subscribers do not acknowledge them",
                group=logs.as_text(letter.group),
                topic=logs.as_text(letter.topic),
                deliveries=letter.deliveries,
                reason=reason_of(letter),
                dead_letter_topic=logs.as_text(letter.to),
            )

    def tick(self, now: float) -> None:
        """End the episodes in which no message became a dead letter lately."""
        for group in [name for name, episode in self._episodes.items() if now - episode.last >= EPISODE_SECONDS]:
            self._end(group)

    def close(self) -> None:
        """The node stops: end all episodes."""
        for group in list(self._episodes):
            self._end(group)

    def _end(self, group: bytes) -> None:
        episode = self._episodes.pop(group)
        log.warning(
            "a shared subscription has no more dead letters",
            group=logs.as_text(group),
            dead_letters=episode.count,
            seconds=round(episode.last - episode.began, 1),
        )


def reason_of(letter: DeadLetter) -> str:
    """Why the last delivery was without success."""
    if letter.code == 0:
        return "not acknowledged"
    return f"refused: 0x{letter.code:02X} {ReasonCode(letter.code).name.lower().replace('_', ' ')}"


def with_history(letter: DeadLetter) -> bytes:
    """The property block of the message, with its history as user properties."""
    properties = decode_block(letter.properties) if letter.properties else {}
    prefix, topic = split_tenant(letter.topic)  # receivers are of the same tenant, and know the names without it
    history = [
        (GROUP, letter.group.replace(prefix, b"", 1).decode()),
        (TOPIC, topic.decode()),
        (DELIVERIES, str(letter.deliveries)),
        (REASON, reason_of(letter)),
    ]
    return encode_block({**properties, "user_property": [*properties.get("user_property", []), *history]})
