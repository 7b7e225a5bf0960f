"""The events that clients see, in order: written by `client.py`, judged by `checker.py`.

Payloads are unique: they name the message. A message that is sent again is the same message. Only messages that clear a
retained one are alike; their packet identifiers distinguish them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Connected:
    """CONNACK has come."""

    client: str
    clean: bool
    session_present: bool
    will: bytes | None = None  # payload; unique per connection


@dataclass(frozen=True)
class Connecting:
    """CONNECT was sent: the broker may have acted on it, whether or not CONNACK comes."""

    client: str
    clean: bool
    will: bytes | None = None


@dataclass(frozen=True)
class Ended:
    """The connection is over. `how`: "disconnect" when DISCONNECT was sent and the broker closed; "lost" else."""

    client: str
    how: str


@dataclass(frozen=True)
class Leaving:
    """DISCONNECT was sent."""

    client: str


@dataclass(frozen=True)
class Subscribed:
    """SUBACK has come."""

    client: str
    topic_filter: str
    qos: int


@dataclass(frozen=True)
class Published:
    """PUBLISH was sent, for the first time or again."""

    client: str
    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    packet_id: int = 0


@dataclass(frozen=True)
class Abandoned:
    """Messages were staged in a transaction, and no commit lists them."""

    client: str
    payloads: tuple[bytes, ...]


@dataclass(frozen=True)
class Acknowledged:
    """The broker has taken a message over: `by` PUBACK, PUBREC or PUBCOMP."""

    client: str
    payload: bytes
    by: str
    packet_id: int = 0


@dataclass(frozen=True)
class Delivered:
    """PUBLISH was received, and perhaps answered."""

    client: str
    topic: str
    payload: bytes
    qos: int
    packet_id: int
    dup: bool
    retain: bool
    answered: bool = True


@dataclass(frozen=True)
class Taken:
    """The application has got a message: for QoS 2 once per packet identifier, until that is released."""

    client: str
    payload: bytes


@dataclass(frozen=True)
class Unexpected:
    """The broker has sent something that the standard does not allow, or refuses what it should do."""

    client: str
    text: str


@dataclass(frozen=True)
class Fault:
    """A fault of a node begins, or ends. `client`: the name of the node."""

    client: str
    text: str


Event = (
    Connected
    | Connecting
    | Ended
    | Leaving
    | Subscribed
    | Published
    | Abandoned
    | Acknowledged
    | Delivered
    | Taken
    | Unexpected
    | Fault
)


@dataclass
class History:
    """All events of a run. At its end, queues have been drained: nothing is on its way any more."""

    events: list[Event] = field(default_factory=list)
    kills: list[int] = field(default_factory=list)  # how many events there were at each kill of the node

    def add(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [event for event in self.events if isinstance(event, kind)]
