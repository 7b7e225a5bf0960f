"""Clients of a cluster that was deployed, whichever way: messages of every QoS, from one node to another."""

import asyncio
from typing import Any

from flockmq.broker.client.client import Client
from flockmq.broker.client.options import Options
from tests.harness.deadline import DEADLINE


def exchange(host: str, port: int, subscriber_id: str, publisher_id: str, **login: Any) -> None:
    """A subscriber gets a later publisher's messages of QoS 0, 1 and 2, each once."""
    asyncio.run(asyncio.wait_for(_exchange(host, port, subscriber_id, publisher_id, login), DEADLINE))


async def _exchange(host: str, port: int, subscriber_id: str, publisher_id: str, login: dict[str, Any]) -> None:
    topic_name = f"exchange/{subscriber_id}"
    async with (
        Client(Options(host=host, port=port, client_id=subscriber_id, **login)) as subscriber,
        Client(Options(host=host, port=port, client_id=publisher_id, **login)) as publisher,
    ):
        assert (await subscriber.subscribe([(topic_name, 2)])).reason_codes == [2]
        for qos in (0, 1, 2):
            for number in range(5):
                await publisher.publish(topic_name, f"{qos}/{number}".encode(), qos)
        got = [await subscriber.receive() for _ in range(15)]
        # In order at each QoS; of different ones either may be first.
        assert sorted(((message.qos, message.payload) for message in got), key=lambda one: one[0]) == [
            (qos, f"{qos}/{number}".encode()) for qos in (0, 1, 2) for number in range(5)
        ]
        # Nothing more: the message published next is the next that comes.
        await publisher.publish(topic_name, b"end", 1)
        assert (await subscriber.receive()).payload == b"end"
