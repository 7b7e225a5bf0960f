"""Users of connected clients: many credentials that expire at one moment, rights that change, identities as one."""

import asyncio
import time
from dataclasses import replace
from typing import Any, cast

from _speedups.codec.packets import Publish, Subscribe
from _speedups.session.rights import PUBLISH, READ, Rights
from broker.auth.authenticator import Credentials, Identity, ReasonCode, Verdict
from broker.auth.chain import Chain
from broker.auth.connected_users import CLOSE_BATCH
from tests.harness.inprocess import Client, Node


class Brief:
    """Everybody may stay until a moment that has passed."""

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReasonCode.ACCEPTED, Identity(credentials.username, expires=time.time()))


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


def test_new_rights_act_on_a_delivery_plan_that_is_kept() -> None:
    node = Node()
    reader, publisher = Client(node, "reader"), Client(node, "publisher")
    reader.send(Subscribe(packet_id=1, topic_filters=[("t", 0)]))
    publisher.send(*[Publish("t", b"before")] * 3)  # the plan is kept from the second time on
    reader.take()
    rights = Rights([(True, READ, b"other"), (True, PUBLISH, b"t")])
    node.broker.connected_users.renew(lambda identity, client_id: replace(identity, rights=rights))
    publisher.send(Publish("t", b"after"))
    assert reader.take() == []


def test_clients_with_equal_identities_share_one() -> None:
    chain = Chain((), cast(Any, None), anonymous=True)

    def identity(client_id: str, listener: str) -> Identity:
        verdict = chain.authenticate(Credentials(client_id, None, None, "127.0.0.1", 4, listener))
        assert isinstance(verdict, Verdict)
        return verdict.identity

    assert identity("a", "one") is identity("b", "one")
    assert identity("a", "one") != identity("a", "other")
