"""AUTH: the exchange before CONNACK and the exchange of a connected client, with a method of the test."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flockmq._speedups.codec.encode import encode
from flockmq._speedups.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
)
from flockmq._speedups.session.rights import PUBLISH, READ, Rights
from flockmq.broker.auth.authenticator import Challenge, Credentials, Exchange, Identity, ReasonCode, Step, Verdict
from flockmq.broker.core.hidden_messages import HiddenMessages
from flockmq.broker.core.secret import BYTES, NAME, Secret
from flockmq.broker.handlers.auth import MAX_BYTES, MAX_STEPS, Authentication
from tests.harness.inprocess import Client, KeepingStore, Node

METHOD = "DIALOGUE"
ADA = Identity("ada")
CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE


class Dialogue:
    """A method that answers what the client asks for: `more`, `yes USER`, `no CODE` or `fail`; `wait` comes later."""

    def __init__(self) -> None:
        self.clients: list[Credentials] = []
        self.steps: list[bytes] = []
        self.identity: Callable[[str], Identity] = Identity
        self.go_on = asyncio.Event()

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Verdict(ReasonCode.ACCEPTED, Identity(credentials.username))

    def exchange(self, credentials: Credentials, method: str) -> Exchange | None:
        return self if method == METHOD else None

    def start(self, client: Credentials, data: bytes) -> Step | Awaitable[Step]:
        self.clients.append(client)
        return self.step(data)

    def step(self, data: bytes) -> Step | Awaitable[Step]:
        self.steps.append(data)
        word, _, rest = data.decode().partition(" ")
        if word == "wait":
            return self._later(rest.encode())
        if word == "yes":
            return Verdict(ReasonCode.ACCEPTED, self.identity(rest), data=b"welcome")
        if word == "no":
            return Verdict(ReasonCode(int(rest, 16)), reason="the client asked for it")
        if word == "fail":
            raise RuntimeError("the method fails")
        return Challenge(b"" if word == "silence" else b"go on")

    async def _later(self, data: bytes) -> Step:
        await self.go_on.wait()
        step = self.step(data)
        return await step if isinstance(step, Awaitable) else step


def opened(node: Node, data: bytes | None = b"more", client_id: str = "c", **more: Any) -> Client:
    """A client that has sent CONNECT with the method."""
    client = Client(node, level=5)
    properties = {"authentication_method": METHOD, **more.pop("properties", {})}
    if data is not None:
        properties["authentication_data"] = data
    client.send(Connect(client_id, keep_alive=0, protocol_level=5, properties=properties, **more))
    return client


def auth(data: bytes | None = None, code: int = CONTINUE, method: str | None = METHOD) -> Auth:
    properties: dict[str, Any] = {} if method is None else {"authentication_method": method}
    return Auth(code, properties | ({} if data is None else {"authentication_data": data}))


def asked(client: Client, data: bytes | None = b"go on") -> None:
    """The client has got AUTH, and nothing else."""
    assert client.take() == [auth(data)]
    assert not client.ended


def connected(node: Node, client_id: str = "c", **more: Any) -> Client:
    client = opened(node, b"yes ada", client_id, **more)
    assert connack(client).reason_code == 0
    return client


def connack(client: Client) -> Connack:
    packet = client.take()[-1]
    assert isinstance(packet, Connack), packet
    return packet


def refused(client: Client, code: int) -> None:
    """CONNACK with this code, then the end."""
    packets = client.take()
    assert [type(packet) for packet in packets[-1:]] == [Connack], packets
    assert packets[-1].reason_code == code, packets[-1]  # type: ignore[union-attr]
    client.node.run()
    assert client.read().ended


def disconnected(client: Client, code: int) -> None:
    """DISCONNECT with this code, then the end."""
    packets = client.take()
    assert packets and isinstance(packets[-1], Disconnect), packets
    assert packets[-1].reason_code == code, packets[-1]
    assert client.ended


@pytest.fixture
def dialogue() -> Dialogue:
    return Dialogue()


@pytest.fixture
def node(dialogue: Dialogue) -> Node:
    return Node(authenticator=dialogue)


def play(act: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(act())  # type: ignore[arg-type]


async def settle(node: Node) -> None:
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    node.run()


# ---- before CONNACK ----


def test_a_dialogue_before_connack(node: Node, dialogue: Dialogue) -> None:
    """[5: MQTT-4.12.0-2], [5: MQTT-4.12.0-3], [5: MQTT-4.12.0-5]: AUTH back and forth, the method in each packet."""
    client = opened(node, username="Ada", password=b"not for the method")
    asked(client)
    assert node.sessions.connected == 0
    client.send(auth(b"silence"))
    asked(client, None)
    client.send(auth())  # without data
    asked(client)
    client.send(auth(b"yes ada"))
    found = connack(client)
    assert found.reason_code == 0
    assert found.properties["authentication_method"] == METHOD
    assert found.properties["authentication_data"] == b"welcome"
    assert dialogue.steps == [b"more", b"silence", b"", b"yes ada"]
    assert [(one.username, one.password, one.client_id) for one in dialogue.clients] == [("Ada", None, "c")]
    client.send(Pingreq())
    assert client.take() == [Pingresp()]
    assert node.sessions.connected == 1


def test_one_step_may_do(node: Node) -> None:
    assert connack(opened(node, b"yes ada")).properties["authentication_data"] == b"welcome"
    refused(opened(node, b"no 87"), 0x87)


def test_a_client_without_a_method_gets_none(node: Node) -> None:
    """[5: MQTT-4.12.0-6]"""
    found = connack(Client(node, "c", level=5))
    assert "authentication_method" not in found.properties


def test_an_unknown_method(node: Node) -> None:
    """[5: MQTT-4.12.0-1]"""
    client = Client(node, level=5)
    client.send(Connect("c", protocol_level=5, properties={"authentication_method": "dialogue"}))
    refused(client, 0x8C)


@pytest.mark.parametrize("code", [0x86, 0x87, 0x88, 0x8C])
def test_a_refusal_at_any_step(node: Node, code: int) -> None:
    """[5: MQTT-4.12.0-4]"""
    client = opened(node)
    client.send(auth(b"no %x" % code))
    refused(client, code)
    assert node.sessions.connected == 0


def test_a_method_that_fails_refuses(node: Node) -> None:
    refused(opened(node, b"fail"), 0x88)
    client = opened(node)
    client.send(auth(b"fail"))
    refused(client, 0x88)


def test_the_method_must_not_change(node: Node) -> None:
    client = opened(node)
    client.send(auth(b"yes ada", method="OTHER"))
    refused(client, 0x8C)


@pytest.mark.parametrize(
    "packet",
    [
        auth(b"yes ada", AGAIN),
        auth(b"yes ada", ReasonCode.SUCCESS),  # [5: MQTT-3.15.2-1]
        Auth(CONTINUE),  # a method is missing
        Auth(),
        Publish("t", b"x"),
        Subscribe(1, [("t", 0)]),
        Pingreq(),
        Connect("c", protocol_level=5),
    ],
    ids=lambda packet: repr(packet)[:40],
)
def test_nothing_but_the_next_step(node: Node, packet: Any) -> None:
    """[5: MQTT-3.1.2-30]"""
    client = opened(node)
    client.send(packet)
    refused(client, 0x82)
    assert node.sessions.connected == 0


@pytest.mark.parametrize("packet", [b"\xf1\x00", b"\xff\x02\x18\x00", b"\xf0\x02\x01\x00", b"\xf0\x03\x18\x02\x15"])
def test_malformed_auth(node: Node, packet: bytes) -> None:
    """[5: MQTT-3.15.1-1], [5: MQTT-3.15.2-1]"""
    client = opened(node)
    client.send(packet)
    refused(client, 0x81)


def test_disconnect_in_place_of_auth(node: Node) -> None:
    client = opened(node)
    asked(client)
    client.send(Disconnect())
    assert client.take() == []
    assert client.ended


def test_auth_before_connect(node: Node) -> None:
    client = Client(node, level=5)
    client.send(auth(b"yes ada"))
    assert client.take() == []
    assert client.ended


def test_auth_below_level_5(node: Node) -> None:
    client = Client(node, "c")
    client.take()
    client.send(encode(auth(b"yes ada"), 5))
    assert client.take() == []
    assert client.ended


def test_steps_and_data_are_bounded(node: Node, dialogue: Dialogue) -> None:
    client = opened(node)
    for _ in range(MAX_STEPS - 1):
        asked(client)
        client.send(auth(b"more"))
    asked(client)
    client.send(auth(b"yes ada"))
    refused(client, 0x87)
    client = opened(node)
    asked(client)
    client.send(auth(b"more " + b"x" * (MAX_BYTES - 10)))
    asked(client)
    client.send(auth(b"yes ada"))
    refused(client, 0x87)


def test_the_time_for_all_steps_is_bounded(dialogue: Dialogue) -> None:
    node = Node(authenticator=dialogue, connect_timeout=2.0)
    client = opened(node)
    asked(client)
    for _ in range(7):
        node.advance(1)
    client.send(auth(b"more"))  # it does not begin again
    asked(client)
    for _ in range(2):
        node.advance(1)
    assert client.take() == []
    assert client.ended


def test_the_time_of_slow_steps_counts(dialogue: Dialogue) -> None:
    async def act() -> None:
        node = Node(authenticator=dialogue, connect_timeout=2.0)
        client = opened(node, b"wait more")
        for _ in range(9):
            node.advance(1)
        assert not client.read().ended
        dialogue.go_on.set()
        await settle(node)
        node.advance(1)
        assert client.read().ended

    play(act)


def test_steps_may_wait(node: Node, dialogue: Dialogue) -> None:
    async def act() -> None:
        client = opened(node, b"wait more")
        client.write(auth(b"wait yes ada"))  # before it is asked for
        node.run()
        assert client.take() == []
        dialogue.go_on.set()
        await settle(node)  # then the node reads on
        await settle(node)
        packets = client.take()
        assert [type(packet) for packet in packets] == [Auth, Connack], packets
        gone = opened(node, b"wait more", "gone")
        dialogue.go_on.clear()
        gone.close()
        node.run()
        dialogue.go_on.set()
        await settle(node)
        assert node.sessions.connected == 1

    play(act)


def test_a_challenge_that_the_client_can_not_take(node: Node) -> None:
    client = opened(node, properties={"maximum_packet_size": 20})
    assert client.take() == []
    assert client.ended


def test_nothing_of_a_session_is_touched_before_success(node: Node) -> None:
    first = connected(node, "pump")
    other = opened(node, b"more", "pump")
    asked(other)
    other.send(auth(b"no 87"))
    refused(other, 0x87)
    first.send(Pingreq())
    assert first.take() == [Pingresp()]


def test_waiting_clients_can_be_evicted(dialogue: Dialogue) -> None:
    """A flood of exchanges that never end takes the places of connections without CONNECT, not more."""
    node = Node(authenticator=dialogue, max_pending_connects=3)
    waiting = [opened(node, client_id=f"c{n}") for n in range(3)]
    for client in waiting:
        asked(client)
    for _ in range(8):
        node.advance(1)
    connected(node, "new")
    assert waiting[0].read().ended  # the oldest first
    assert not waiting[2].read().ended


# ---- again ----


def test_authenticating_again(node: Node, dialogue: Dialogue) -> None:
    client = connected(node)
    client.send(Subscribe(1, [("t", 0)]), Publish("t", b"1"))
    client.take()
    client.send(auth(b"more", AGAIN), Publish("t", b"2"))
    packets = client.take()
    assert packets[0] == auth(b"go on")
    assert isinstance(packets[1], Publish)  # other packets go on
    dialogue.identity = lambda user: Identity(user, rights=Rights([(True, PUBLISH, b"t"), (True, READ, b"other")]))
    client.send(auth(b"yes ada"), Publish("t", b"3"), Pingreq())
    assert client.take() == [auth(b"welcome", ReasonCode.SUCCESS), Pingresp()]  # the new rights hold
    dialogue.identity = lambda user: Identity(user, rights=Rights([(True, PUBLISH | READ, b"t")]))
    client.send(auth(b"yes ada", AGAIN), Publish("t", b"4"))
    packets = client.take()
    assert packets[0] == auth(b"welcome", ReasonCode.SUCCESS)
    assert [packet.payload for packet in packets if isinstance(packet, Publish)] == [b"4"]
    assert [one.client_id for one in dialogue.clients] == ["c"] * 3


def test_another_user_is_refused(node: Node) -> None:
    client = connected(node)
    client.send(auth(b"yes bob", AGAIN))
    disconnected(client, 0x87)


@pytest.mark.parametrize(
    ("asks", "code"), [("no 86", 0x87), ("no 87", 0x87), ("no 88", 0x89), ("no 8c", 0x8C), ("fail", 0x89)]
)
def test_a_failure_ends_the_connection_with_its_will(node: Node, asks: str, code: int) -> None:
    """[5: MQTT-4.12.1-2]"""
    watcher = Client(node, "watcher", level=5)
    watcher.send(Subscribe(1, [("will", 0)]))
    watcher.take()
    client = connected(node, will_topic="will", will_payload=b"gone")
    client.send(auth(asks.encode(), AGAIN))
    disconnected(client, code)
    assert [packet.payload for packet in watcher.take() if isinstance(packet, Publish)] == [b"gone"]


def test_again_only_with_the_same_method(node: Node) -> None:
    """[5: MQTT-4.12.1-1]"""
    client = connected(node)
    client.send(auth(b"yes ada", AGAIN, "OTHER"))
    disconnected(client, 0x82)
    client = connected(node)
    client.send(auth(b"more", AGAIN))
    asked(client)
    client.send(auth(b"yes ada", method="OTHER"))
    disconnected(client, 0x8C)


def test_only_one_exchange_at_a_time(node: Node, dialogue: Dialogue) -> None:
    client = connected(node)
    client.send(auth(b"more", AGAIN), auth(b"more", AGAIN))
    disconnected(client, 0x82)

    async def act() -> None:
        for code in (AGAIN, CONTINUE):
            client = connected(node)
            client.send(auth(b"wait yes ada", AGAIN), auth(b"yes ada", code))
            disconnected(client, 0x82)
            dialogue.go_on.set()
            await settle(node)
            dialogue.go_on.clear()
        assert node.sessions.connected == 0

    play(act)


@pytest.mark.parametrize("packet", [auth(b"yes ada"), auth(b"x", ReasonCode.SUCCESS), Auth(AGAIN), Auth()])
def test_auth_that_fits_nothing(node: Node, packet: Auth) -> None:
    client = connected(node)
    client.send(packet)
    disconnected(client, 0x82)


def test_auth_of_a_client_without_a_method(node: Node) -> None:
    """[5: MQTT-4.12.0-7]"""
    for code in (AGAIN, CONTINUE):
        client = Client(node, "c", level=5)
        connack(client)
        client.send(auth(b"yes ada", code))
        disconnected(client, 0x82)


def test_the_bounds_hold_again_too(node: Node) -> None:
    client = connected(node)
    client.send(auth(b"more", AGAIN), *[auth(b"more")] * (MAX_STEPS - 1))
    assert client.take() == [auth(b"go on")] * MAX_STEPS
    client.send(auth(b"yes ada"))
    disconnected(client, 0x87)


def test_slow_authentication_again(dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(authenticator=dialogue)
    client = connected(node)
    client.send(auth(b"more", AGAIN))
    asked(client)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    client.send(auth(b"yes ada"))
    disconnected(client, 0x8D)


def test_a_step_that_waits_holds_back_no_messages(node: Node, dialogue: Dialogue) -> None:
    async def act() -> None:
        client = connected(node)
        client.send(Subscribe(1, [("t", 1)]))
        client.take()
        client.send(auth(b"wait yes ada", AGAIN), Publish("t", b"x", qos=1, packet_id=7))
        assert {type(packet) for packet in client.take()} == {Puback, Publish}
        dialogue.go_on.set()
        await settle(node)
        assert client.take() == [auth(b"welcome", ReasonCode.SUCCESS)]

    play(act)


# ---- credentials that expire ----


def test_who_authenticates_again_stays_longer(node: Node, dialogue: Dialogue) -> None:
    async def act() -> None:
        now = time.time()
        dialogue.identity = lambda user: Identity(user, expires=now - 1)
        first, second = connected(node, "first"), connected(node, "second")
        users = node.broker.connected_users
        dialogue.identity = lambda user: Identity(user, expires=now + 3600)
        first.send(auth(b"yes ada", AGAIN))
        first.take()
        users.tick()
        await settle(node)
        disconnected(second, 0xA0)
        dialogue.identity = Identity  # for ever
        first.send(auth(b"yes ada", AGAIN), Pingreq())
        assert first.take()[-1] == Pingresp()
        dialogue.identity = lambda user: Identity(user, expires=now - 1)
        first.send(auth(b"yes ada", AGAIN))
        assert len(first.take()) == 1
        users.tick()
        await settle(node)
        disconnected(first, 0xA0)
        assert users._expiries == 0
        assert users["ada"] == 0

    play(act)


def test_expiries_of_one_client_do_not_pile_up(node: Node, dialogue: Dialogue) -> None:
    client = connected(node)
    later = time.time() + 3600
    for n in range(5000):
        dialogue.identity = lambda user, n=n: Identity(user, expires=later + n % 2)  # type: ignore[misc]
        client.send(auth(b"yes ada", AGAIN))
        client.take()
    assert len(node.broker.connected_users._expiring) < 2000


# ---- the secret of unknown users ----


def test_the_secret_outlives_a_restart() -> None:
    store = KeepingStore()
    node = Node(store)
    secret = node.broker.secret()
    assert len(secret) == BYTES
    assert node.broker.secret() == secret
    node.run()
    watcher = Client(node, "watcher", level=5)
    watcher.send(Subscribe(1, [("#", 0), ("$SYS/#", 0)]))
    others = [packet for packet in watcher.take() if not isinstance(packet, Connack | Suback)]
    assert [packet.topic_name for packet in others] == ["$SYS/broker/events/clients/watcher/subscribed"]
    again = Node(KeepingStore(store.after(len(store.told))))
    assert again.broker.secret() == secret
    assert Node().broker.secret() != secret


def test_a_secret_that_is_made_before_the_state_is_loaded() -> None:
    """It is stored only if there is none; else the stored one takes its place."""
    plane = Node().broker.data_plane
    messages, early, late = HiddenMessages(plane), Secret(plane), Secret(plane)
    made, other = early(), late()
    assert made != other and messages.find(NAME) is None
    early.loaded()
    assert messages.find(NAME) == early() == made
    late.loaded()
    assert messages.find(NAME) == late() == made


def test_the_secret_with_no_room_for_it() -> None:
    node = Node(max_retained_messages=0)
    assert node.broker.secret() == node.broker.secret()


def test_a_connection_that_ends_leaves_nothing(node: Node) -> None:
    """Neither after an exchange nor in the middle of one: without the collector, its memory is free at once."""
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(thing, Authentication) for thing in gc.get_objects())
        for client in (opened(node), opened(node, b"yes ada", "done"), connected(node, "again")):
            client.send(
                auth(b"more", AGAIN if client.received and isinstance(client.received[0], Connack) else CONTINUE)
            )
            client.close()
            node.run()
        node.clients.clear()
        assert sum(isinstance(thing, Authentication) for thing in gc.get_objects()) == before
    finally:
        gc.enable()
