"""Clients of all kinds that publish, subscribe, lose connections and return, and the judgement of all that they saw."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from . import checker
from .client import Fleet, RecordedClient
from .history import History

WINDOW = 30  # unacknowledged messages of a publisher
MakeClient = Callable[..., RecordedClient]


class Load:
    """Three publishers, three subscribers with persistent sessions, and clients with wills and retained messages.

    Args:
        seed: of the clients' actions.
        make_client: as `RecordedClient`: history, client id, `level` and `clean`.
        backlog: messages that a subscriber may miss before the publishers pause.
        levels: protocol levels of publishers, of subscribers, and of clients with wills.
    """

    def __init__(
        self,
        seed: int,
        make_client: MakeClient,
        fleet: type[Fleet] = Fleet,
        *,
        backlog: int = 1 << 30,
        levels: Sequence[Sequence[int]] = ((4, 3, 5), (4, 5, 5), (4, 5, 5)),
    ) -> None:
        self.rng = random.Random(seed)
        self.history = History()
        self.backlog = backlog
        publishers, subscribers, mortals = levels
        self.publishers = [
            make_client(self.history, f"publisher {number}", level=level) for number, level in enumerate(publishers)
        ]
        self.subscribers = [
            make_client(self.history, f"subscriber {number}", level=level) for number, level in enumerate(subscribers)
        ]
        self.keeper = make_client(self.history, "keeper", level=publishers[-1])
        self.mortals = [
            make_client(self.history, f"mortal {number}", clean=number % 2 == 0, level=level)
            for number, level in enumerate(mortals)
        ]
        self.fleet = fleet(*self.publishers, *self.subscribers, self.keeper, *self.mortals)
        self.count = 0
        self.published = 0  # messages to the subscribers
        self.kills = 0

    def subscribe(self) -> None:
        """The subscribers subscribe to all messages; the first has QoS 1."""
        for number, subscriber in enumerate(self.subscribers):
            subscriber.subscribe(("t/#", 2 if number else 1), ("will", 2))

    def port_of(self, client: RecordedClient) -> int:
        """The port of this machine that the client connects to."""
        raise NotImplementedError

    def number(self) -> int:
        """A number that no message has."""
        self.count += 1
        return self.count

    def connect(self, client: RecordedClient) -> bool:
        """Connect the client, with a new will if it is one that has wills. Whether that succeeded."""
        will = b"will %d" % self.number() if client in self.mortals else None
        return client.connect(self.port_of(client), will=will)

    def reconnect(self) -> None:
        """Some of the clients without a connection try to connect, once."""
        for client in self.fleet.clients:
            if client.socket is None and self.rng.random() < 0.7:
                self.connect(client)

    def act(self) -> None:
        """One action of the clients."""
        chance = self.rng.random()
        if chance < 0.80:
            self.publish()
        elif chance < 0.86:
            if len(self.keeper.outgoing) < WINDOW:
                payload = b"" if self.rng.random() < 0.2 else b"value %d" % self.number()
                self.keeper.publish(f"kept/{self.rng.randrange(20)}", payload, 1, retain=True)
        elif chance < 0.92:
            self.rng.choice([*self.subscribers, *self.publishers, *self.mortals]).lose()
        elif chance < 0.94:
            self.rng.choice(self.mortals).leave()
        else:
            self.reconnect()
        self.fleet.run_for(self.rng.choice((0, 0, 0.002)))

    def publish(self) -> None:
        """A publisher publishes one message or some, if its window and the backlog of the subscribers allow."""
        publisher = self.rng.choice(self.publishers)
        for _ in range(self.rng.choice((1, 3, 10))):
            if len(publisher.outgoing) < WINDOW and not self.is_behind():
                name, qos = self.rng.randrange(3), self.rng.choice((1, 2))
                size = self.rng.choice((0, 0, 100, 5000))
                payload = b"%s/%d %s" % (publisher.client_id.encode(), self.number(), bytes(size))
                publisher.publish(f"t/{name}", payload, qos)
                self.published += 1

    def is_behind(self) -> bool:
        """Whether a subscriber misses more messages than `backlog`: a broker's limits of queues are not its faults."""
        return self.published - min(len(client.taken) for client in self.subscribers) > self.backlog

    def findings(self, *, behind: bool = False) -> list[str]:
        """The findings over all that happened, without retained messages. `behind`: as for `checker.check`."""
        return checker.check(self.history, behind=behind)
