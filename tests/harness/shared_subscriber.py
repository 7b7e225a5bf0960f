"""A subscriber of a shared subscription, and a publisher of work for it, step by step."""

from flockmq._speedups.codec.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe
from tests.harness.broker_process import until
from tests.harness.socket_client import SocketClient

JOBS = "$share/workers/jobs/#"
NEVER = {"session_expiry_interval": 0xFFFFFFFF}


class Worker:
    """A subscriber: it takes messages, and acknowledges them when asked."""

    topic_filter = JOBS

    def __init__(
        self,
        port: int,
        name: str = "worker",
        qos: int = 1,
        *,
        persistent: bool = False,
        level: int = 5,
        maximum_packet_size: int = 0,
    ) -> None:
        more = {"clean_start": False, "properties": NEVER} if persistent else {}
        if maximum_packet_size:
            more["properties"] = {**more.get("properties", {}), "maximum_packet_size": maximum_packet_size}
        self.client = SocketClient(port, name, level=level, **more)
        self.held: list[Publish | Pubrel] = []
        self.seen: list[bytes] = []
        if not self.client.connack.session_present:
            self.client.send(Subscribe(1, [(self.topic_filter, qos)]))
            while not isinstance(packet := self.client.receive(), Suback):  # messages may come before it
                self.take(packet)

    def take(self, packet: Packet | None) -> None:
        if isinstance(packet, Publish):
            self.seen.append(packet.payload)
        if isinstance(packet, Pubrel) or (isinstance(packet, Publish) and packet.qos):
            self.held.append(packet)

    def look(self) -> "Worker":
        for packet in self.client.ping():
            self.take(packet)
        return self

    def answer(self) -> list[bytes]:
        """Acknowledge all that is there; the payloads that are done."""
        done = []
        for packet in self.held:
            if isinstance(packet, Pubrel):
                self.client.send(Pubcomp(packet.packet_id))
            else:
                done.append(packet.payload)
                self.client.send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
        self.held.clear()
        return done

    def wait_for(self, count: int) -> list[bytes]:
        """Acknowledge what comes until there were so many messages; all their payloads."""

        def enough() -> bool:
            self.answer()
            self.look().answer()
            return len(self.seen) >= count

        until(enough)
        return self.seen


def publish(client: SocketClient, *payloads: bytes, qos: int = 1, topic: str = "jobs/x") -> None:
    for payload in payloads:
        client.send(Publish(topic, payload, qos, packet_id=qos))
        if qos == 1:
            assert client.receive() == Puback(1)
        elif qos == 2:
            assert client.receive() == Pubrec(2)
            client.send(Pubrel(2))
            assert client.receive() == Pubcomp(2)


def gathered(workers: list[Worker], wanted: int) -> list[bytes]:
    """All that the workers have seen, once there is so much; acknowledged."""
    found: list[bytes] = []

    def enough() -> bool:
        for worker in workers:
            found.extend(worker.look().answer())
        return len(found) >= wanted

    until(enough)
    return found
