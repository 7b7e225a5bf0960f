"""An authentication method by itself, within the process of a test; and clients that log in at a broker with it."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

from flockmq.broker.auth.authenticator import Credentials, ReasonCode, Verdict
from tests.harness.cluster_process import Broker
from tests.protocol.wire import Wire

T = TypeVar("T")
ADDRESS = "192.0.2.1"


class Authenticating(Protocol):
    """A method."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict | None] | None: ...


async def ask(
    users: Authenticating,
    username: str | None,
    password: bytes | None = None,
    client_id: str = "c",
    address: str = ADDRESS,
) -> Verdict | None:
    """The verdict over a client; its password is its name unless another is given."""
    given = (username or "").encode("utf-8", "surrogatepass") if password is None else password
    found = users.authenticate(Credentials(client_id, username, given, address, 5))
    return await found if isinstance(found, Awaitable) else found


def run(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(what)


def code(verdict: Verdict | None) -> ReasonCode | None:
    return None if verdict is None else verdict.code


def let_in(broker: Broker, user: str, password: str = "") -> Wire:
    """A client of a user, whose password is its name unless another is given."""
    return Wire(broker.port, name=f"client of {user}").connect(f"user={user} pass={password or user}")


def connects(broker: Broker) -> bool:
    """Whether the user `ada` is let in."""
    with Wire(broker.port) as client:
        client.send("connect user=ada pass=ada")
        return bool(client.packet().reason_code == 0)
