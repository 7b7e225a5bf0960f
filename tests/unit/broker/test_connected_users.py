"""Many connections whose credentials expire at one moment hold up the others only a little at a time."""

import asyncio
import time

from broker.auth.authenticator import Credentials, Identity, ReturnCode, Verdict
from broker.auth.connected_users import CLOSE_BATCH
from tests.harness.inprocess import Client, Node


class Brief:
    """Everybody may stay until a moment that has passed."""

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReturnCode.ACCEPTED, Identity(credentials.username, expires=time.time()))


def test_expired_connections_are_ended_in_slices() -> None:
    async def run() -> list[int]:
        node = Node(authenticator=Brief())
        clients = [Client(node, f"c{n}") for n in range(CLOSE_BATCH + 50)]
        node.broker.connected_users.tick()
        left = [node.sessions.connected]
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        left.append(node.sessions.connected)
        assert all(client.read().ended for client in clients)
        return left

    assert asyncio.run(run()) == [50, 0]
