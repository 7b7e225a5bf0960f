"""Many connections whose credentials expire at one moment hold up the others only a little at a time."""

import asyncio
import time

from broker.auth.authenticator import Credentials, Identity, ReturnCode, Verdict
from broker.auth.connected_users import ENDED_AT_ONCE
from tests.harness.inprocess import Client, Node


class Brief:
    """Everybody may stay until a moment that has passed."""

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReturnCode.ACCEPTED, Identity(credentials.username, expires=time.time()))


def test_expired_connections_are_ended_in_slices() -> None:
    async def run() -> list[int]:
        node = Node(authenticator=Brief())
        clients = [Client(node, f"c{n}") for n in range(ENDED_AT_ONCE + 50)]
        node.broker.principals.tick()
        left = [node.broker.sessions.connected]
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        left.append(node.broker.sessions.connected)
        assert all(client.read().ended for client in clients)
        return left

    assert asyncio.run(run()) == [50, 0]
