"""Users of connected clients: many credentials that expire at one moment, rights that change, identities as one."""

import asyncio
import socket
import time
from typing import Any, cast

import pytest

from flockmq._speedups.codec.packets import Publish, Subscribe
from flockmq._speedups.net.listener import Endpoint, Listener
from flockmq._speedups.protocol.close_reasons import PASSWORD_CHANGED
from flockmq._speedups.session.rights import PUBLISH, READ, Rights
from flockmq.broker.auth import connected_users
from flockmq.broker.auth.authenticator import Credentials, Identity, ReasonCode, Verdict
from flockmq.broker.auth.chain import Chain
from flockmq.broker.auth.connected_users import CLOSE_BATCH
from flockmq.broker.config.link import LISTENER
from tests.harness.inprocess import Client, Node

SLICE = 64  # connections of a walk between two looks at the time


class Brief:
    """Everybody may stay until a moment that has passed."""

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReasonCode.ACCEPTED, Identity(credentials.username, expires=time.time()))


class Stored:
    """Everybody has one password, which is stored."""

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReasonCode.ACCEPTED, Identity("fleet", method=StoredUsers.name, credential=b"old"))


class StoredUsers:
    """A method with one stored password for all."""

    name = "stored"
    dummy_hash = None

    def __init__(self, credential: bytes) -> None:
        self._credential = credential

    def authenticate(self, credentials: Credentials) -> None:
        return None

    def renew(self, identity: Identity) -> Identity:
        return identity.replace(credential=self._credential)


class AnotherMethod(StoredUsers):
    """A method that stores nothing."""

    name = "another"

    def __init__(self) -> None:
        super().__init__(b"")

    def renew(self, identity: Identity) -> Identity:
        return identity


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


def test_connections_of_a_changed_password_are_ended_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets of others are served between: 20 000 devices may share one user."""
    monkeypatch.setattr(connected_users, "SLICE_SECONDS", 0)
    monkeypatch.setattr(connected_users, "LOOK", SLICE)

    async def run() -> list[int]:
        node = Node(authenticator=Stored())
        clients = [Client(node, f"c{n}") for n in range(2 * SLICE + 50)]
        chain = Chain((StoredUsers(b"new"),), cast(Any, None), anonymous=False)
        node.broker.connected_users.renew(lambda: chain.renewed)
        left = [node.sessions.connected]
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
            if node.sessions.connected != left[-1]:
                left.append(node.sessions.connected)
        assert all(client.read().ended for client in clients)
        return left

    assert asyncio.run(run()) == [SLICE + 50, 50, 0]


@pytest.mark.parametrize(
    ("present", "closes", "is_kept"), [(b"old", True, True), (b"new", True, False), (b"new", False, True)]
)
def test_a_client_is_judged_by_the_credentials_that_it_used(present: bytes, closes: bool, is_kept: bool) -> None:
    identity = Identity("ada", method=StoredUsers.name, credential=b"old")
    chain = Chain((StoredUsers(present),), cast(Any, None), anonymous=False, close_on_password_change=closes)
    assert chain.renewed(identity, "c") == (identity if is_kept else PASSWORD_CHANGED)
    other = identity.replace(method="another")
    assert Chain((AnotherMethod(),), cast(Any, None), anonymous=False).renewed(other, "c") == other


def test_new_rights_act_on_a_delivery_plan_that_is_kept() -> None:
    node = Node()
    reader, publisher = Client(node, "reader"), Client(node, "publisher")
    reader.send(Subscribe(packet_id=1, topic_filters=[("t", 0)]))
    publisher.send(*[Publish("t", b"before")] * 3)  # the plan is kept from the second time on
    reader.take()
    rights = Rights([(True, READ, b"other"), (True, PUBLISH, b"t")])
    node.broker.connected_users.renew(lambda: lambda identity, client_id: identity.replace(rights=rights))
    publisher.send(Publish("t", b"after"))
    assert reader.take() == []


def test_a_link_that_waits_for_its_session_gets_in_the_way_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal of all clients ended at its connection, which has no session yet: in a cluster that takes a while."""
    node = Node()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")
        listening.listen()
        listening.setblocking(False)
        node.reactor.listen(Endpoint(Listener(LISTENER), listening))
        waiting: list[Any] = []
        monkeypatch.setattr(node.broker.coordinator.owner, "claim", lambda *arguments: waiting.append(arguments))
        monkeypatch.setattr(node, "address", listening.getsockname())
        link = Client(node, "$link/hub", level=5)
        monkeypatch.undo()
        assert waiting
        reader = Client(node, "reader")
        seen = set[str]()

        def renewed(identity: Identity, client_id: str) -> Identity:
            seen.add(client_id)
            return identity

        node.broker.connected_users.renew(lambda: renewed)
        assert seen == {"$link/hub", "reader"}
        reader.close()
        link.close()


def test_clients_with_equal_identities_share_one() -> None:
    chain = Chain((), cast(Any, None), anonymous=True)

    def identity(client_id: str, listener: str) -> Identity:
        verdict = chain.authenticate(Credentials(client_id, None, None, "127.0.0.1", 4, listener))
        assert isinstance(verdict, Verdict)
        return verdict.identity

    assert identity("a", "one") is identity("b", "one")
    assert identity("a", "one") != identity("a", "other")
