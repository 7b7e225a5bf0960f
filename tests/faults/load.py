"""A broker under the load of `flockmq prove`; its faults are the test's.

FLOCKMQ_TEST_SEED repeats what the clients do, not the moments of the machine.
"""

import time
from collections.abc import Callable

from flockmq._speedups.codec.packets import Pingreq, Publish
from flockmq.loadtest.prove import checker
from flockmq.loadtest.prove.client import RecordedClient
from flockmq.loadtest.prove.load import WINDOW
from flockmq.loadtest.prove.load import Load as ClientLoad
from tests.faults.client import FaultClient, Fleet
from tests.faults.failure import failure
from tests.harness.cluster_process import Broker
from tests.harness.deadline import DEADLINE
from tests.harness.socket_client import SocketClient

__all__ = ["SETTINGS", "WINDOW", "Load"]

PING = 5.0  # seconds between two PINGREQs of a client

SETTINGS: dict[str, object] = {
    "limits.max_queued_messages": 1_000_000,
    "limits.max_queued_bytes": 1 << 30,
    "limits.max_inflight": 20,
}


class Load(ClientLoad):
    """A broker under load, and all that clients do to it.

    Args:
        broker: not started.
        seed: of the clients' acts.
    """

    fleet: Fleet

    def __init__(self, broker: Broker, seed: int) -> None:
        super().__init__(seed, FaultClient, Fleet)
        self.broker = broker

    def start(self) -> None:
        """Start the broker; all clients connect, and subscribe."""
        self.broker.start()
        self.reconnect_all()
        self.subscribe()
        self.until(lambda: not any(client.subscriptions for client in self.subscribers), "SUBACK")

    def port_of(self, client: RecordedClient) -> int:
        return self.broker.port

    def reconnect_all(self) -> None:
        """All clients without a connection try it until they have one."""
        end = time.monotonic() + DEADLINE
        for client in self.fleet.clients:
            while client.socket is None and not self.connect(client):
                assert time.monotonic() < end, f"{client.client_id} can't connect\n{self.broker.log_text()}"
                self.fleet.run_for(0.05)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Serve the clients, and connect those again that have lost their connections, until a condition holds.

        Clients send PINGREQ, as others do: the reset of a connection may have been lost behind a broken network.
        """
        end = time.monotonic() + DEADLINE
        ping_at = time.monotonic() + PING
        while not condition():
            assert time.monotonic() < end, f"it did not happen: {what}\n{self.broker.log_text()}"
            self.reconnect_all()
            if time.monotonic() > ping_at:
                ping_at += PING
                for client in self.fleet.clients:
                    client.send(Pingreq())
            self.fleet.run_for(0.02)

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
        findings = self.findings(behind=behind)
        assert findings == [], failure(findings, self.history, self.broker.log_text())
        for port in self.ports():
            findings = checker.retained(self.history, self._retained(port))
            assert findings == [], f"at port {port}:\n" + failure(findings, self.history, self.broker.log_text())

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
        """Wait until late messages have arrived."""

    def ports(self) -> list[int]:
        """Where retained messages are looked at."""
        return [self.broker.port]
