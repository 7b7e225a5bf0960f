"""A broker under load of clients of all kinds, judged by the checker; who breaks what meanwhile is for the test to say.

FLOCKMQ_TEST_SEED repeats what the clients do, not the moments of the machine.
"""

import random
import time
from collections.abc import Callable

from _speedups.codec.packets import Publish
from tests.faults import checker
from tests.faults.client import FaultClient, Fleet
from tests.faults.history import History
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient

SETTINGS: dict[str, object] = {
    "limits.max_queued_messages": 1_000_000,
    "limits.max_queued_bytes": 1 << 30,
    "limits.max_inflight": 20,
}
WINDOW = 30  # messages that a publisher has under way


class Load:
    """A broker under load, and all that clients do to it.

    Args:
        broker: not started.
        seed: of what clients do.
    """

    def __init__(self, broker: Broker, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = broker
        self.history = History()
        self.publishers = [
            FaultClient(self.history, f"publisher {number}", level=(4, 3, 5)[number]) for number in range(3)
        ]
        self.subscribers = [
            FaultClient(self.history, f"subscriber {number}", level=(4, 5, 5)[number]) for number in range(3)
        ]
        self.keeper = FaultClient(self.history, "keeper", level=5)
        self.mortals = [
            FaultClient(self.history, f"mortal {number}", clean=number % 2 == 0, level=(4, 5, 5)[number])
            for number in range(3)
        ]
        self.fleet = Fleet(*self.publishers, *self.subscribers, self.keeper, *self.mortals)
        self.count = 0
        self.kills = 0

    def start(self) -> None:
        """Start the broker; all clients connect, and subscribe."""
        self.broker.start()
        self.reconnect(everybody=True)
        for number, subscriber in enumerate(self.subscribers):
            subscriber.subscribe(("t/#", 2 if number else 1), ("will", 2))
        self.until(lambda: not any(client.subscriptions for client in self.subscribers), "SUBACK")

    def port_of(self, client: FaultClient) -> int:
        """Of the broker that the client connects to."""
        return self.broker.port

    def number(self) -> int:
        """A number that no message has."""
        self.count += 1
        return self.count

    def reconnect(self, *, everybody: bool = False) -> None:
        """Some, or all, of those who are not connected try it; `everybody` until they are."""
        end = time.monotonic() + DEADLINE
        for client in self.fleet.clients:
            while client.socket is None and (everybody or self.rng.random() < 0.7):
                will = b"will %d" % self.number() if client in self.mortals else None
                if client.connect(self.port_of(client), will=will) or not everybody:
                    break
                assert time.monotonic() < end, f"{client.client_id} can't connect\n{self.broker.log_text()}"
                self.fleet.run_for(0.05)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Go on, with whoever loses a connection coming back, until something is so."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, f"it did not happen: {what}\n{self.broker.log_text()}"
            self.reconnect(everybody=True)
            self.fleet.run_for(0.02)

    def act(self) -> None:
        """One thing that clients do."""
        chance = self.rng.random()
        if chance < 0.80:
            publisher = self.rng.choice(self.publishers)
            for _ in range(self.rng.choice((1, 3, 10))):
                if len(publisher.outgoing) < WINDOW:
                    name, qos = self.rng.randrange(3), self.rng.choice((1, 2))
                    size = self.rng.choice((0, 0, 100, 5000))
                    payload = b"%s/%d %s" % (publisher.client_id.encode(), self.number(), bytes(size))
                    publisher.publish(f"t/{name}", payload, qos)
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

    def kill(self) -> None:
        """kill -9, and everybody has to see how to go on."""
        self.broker.kill()
        self.kills += 1
        self.fleet.lose()
        self.broker.start()
        self.reconnect()

    def run(self, seconds: float) -> None:
        """Act for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.act()

    def finish(self, *, behind: bool = False) -> None:
        """All that is under way arrives; then nothing may be wrong. `behind`: as for `checker.check`."""
        self.until(lambda: not any(client.outgoing for client in self.fleet.clients), "all acknowledged")
        self.publishers[0].publish("t/last", b"last", 2)
        self.until(
            lambda: (
                all(b"last" in client.taken and not client.unreleased for client in self.subscribers)
                and not self.publishers[0].outgoing
            ),
            "all delivered",
        )
        self.settle()
        findings = checker.check(self.history, behind=behind)
        assert findings == [], "\n".join(findings[:20]) + "\n" + self.broker.log_text()
        for port in self.ports():
            findings = checker.retained(self.history, self._retained(port))
            assert findings == [], f"at port {port}:\n" + "\n".join(findings[:20]) + "\n" + self.broker.log_text()

    def _retained(self, port: int) -> dict[str, bytes]:
        """The retained messages that a new subscriber gets; it tries again if its node closes the connection.

        A node does so when it could not renew its lease in time: the lease of these tests is short.
        """
        end = time.monotonic() + DEADLINE
        while True:
            try:
                with SocketClient(port, "new subscriber") as client:
                    client.subscribe(("kept/#", 0))
                    return {
                        packet.topic_name: packet.payload for packet in client.ping() if isinstance(packet, Publish)
                    }
            except ConnectionError:
                assert time.monotonic() < end, self.broker.log_text()
                time.sleep(0.05)

    def settle(self) -> None:
        """What comes late has come."""

    def ports(self) -> list[int]:
        """Where retained messages are looked at."""
        return [self.broker.port]
