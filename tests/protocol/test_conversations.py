"""Plays the conversations of `conversations/*.toml`: within this process with each store, and with a cluster.

A sample of them is played against a node alone that is a real process.

A conversation is an entry with `name`, `statement`, optional `levels`, `settings` of the node, `one_write`, `nodes`
("alone" or "cluster": it is played only there), and `steps`, one a line:

    a > PACKET       client a sends; the first time, and after its end, it connects to the node
    a < PACKET       exactly these bytes come to a next
    a < closed       the node closes a's connection, having sent nothing more
    a < closed CODE  likewise, but at level 5 it sends DISCONNECT with this reason code before
    a nothing        a gets nothing, though the node has acted on and stored all that everybody sent
    a drop | reset   a's network connection ends, by FIN or RST
    clock advances N N seconds pass; such conversations are played within this process only

PACKET is a line as packet_lines.py reads it; a client id is the client's name unless given. Conversations of one client
marked `one_write` are played three times: step by step, byte by byte, and with all that is sent in one write.
"""

import logging
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flockmq._speedups.base.tick import TICKS_PER_SECOND
from flockmq.broker.config.keys import KEYS
from flockmq.broker.storage.memory import MemoryStore
from flockmq.broker.storage.sqlite import SqliteStore
from flockmq.broker.storage.store import Store
from tests.harness.cluster_process import Broker, make_broker
from tests.harness.inprocess import Node
from tests.protocol.local_wire import LocalWire
from tests.protocol.packet_lines import Awaited, parse_packet
from tests.protocol.wire import Wire

HERE = Path(__file__).parent / "conversations"
STEP, SPLIT, ONE_WRITE = "step by step", "byte by byte", "one write"
CLOCK = "clock"
LEVELS = [3, 4, 5]


class Conversation(NamedTuple):
    name: str
    statement: str
    level: int
    way: str  # STEP, SPLIT or ONE_WRITE
    settings: dict[str, Any]
    steps: list[list[str]]  # words: client, action, rest of the line
    only_level: bool  # it is played at no other level
    nodes: str  # "alone" or "cluster"; "": both

    @property
    def is_timed(self) -> bool:
        return any(step[0] == CLOCK for step in self.steps)


def load() -> Iterator[Any]:
    for file in sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(file.read_text("utf-8"))["conversation"]:
            steps = [line.split(None, 2) for line in entry["steps"].splitlines() if line.strip()]
            levels = entry.get("levels", LEVELS)
            for level in levels:
                for way in (STEP, SPLIT, ONE_WRITE) if entry.get("one_write") else (STEP,):
                    conversation = Conversation(
                        entry["name"],
                        entry["statement"],
                        level,
                        way,
                        entry.get("settings", {}),
                        steps,
                        levels == [level],
                        entry.get("nodes", ""),
                    )
                    name = f"{file.stem}: {entry['name']} [{level}{'' if way == STEP else ', ' + way}]"
                    yield pytest.param(conversation, id=name)


Nodes = Callable[[str, dict[str, Any]], Any]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Callable[[str, dict[str, Any]], Broker]]:
    """Brokers that conversations share, one at a time of each kind; a conversation leaves no traces in them.

    A cluster that waits costs a hundredth of a core, and there are dozens of settings: each group of conversations with
    the same settings is played in one go.
    """
    running: dict[str, tuple[dict[str, Any], Broker]] = {}  # by kind
    directory = Path(tempfile.mkdtemp(prefix="flockmq-test-"))

    def end(broker: Broker) -> None:
        broker.close()
        broker.check()

    def get(kind: str, settings: dict[str, Any]) -> Broker:
        if kind in running:
            used, broker = running[kind]
            if used == settings and broker.running:
                return broker
            del running[kind]
            end(broker)
        place = directory / f"{len(list(directory.iterdir()))}"
        place.mkdir()
        broker = make_broker(place, kind, {"mqtt.sys_interval": 0, **settings}).start()
        running[kind] = settings, broker
        return broker

    yield get
    for _, broker in running.values():
        end(broker)
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory for stores, in memory if there is such a file system: no conversation is about the disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="flockmq-test-", dir=memory) as name:
        yield Path(name)


@pytest.fixture
def local_node(store: str, place: Path) -> Iterator[Callable[[dict[str, Any]], Node]]:
    """Makes a node within this process, over the store of the parameter `store`."""
    stores: list[Store] = []

    def make(settings: dict[str, Any]) -> Node:
        path = place / "flockmq.db"
        for file in place.glob("flockmq.db*"):
            file.unlink()
        stores.append(SqliteStore(path, sync="normal") if store == "sqlite" else MemoryStore())
        groups: dict[str, dict[str, Any]] = {"limits": {}, "mqtt": {}, "shared": {}}
        for name, value in settings.items():
            group, _, key = name.partition(".")
            groups[group][key] = KEYS[name].kind.read(value, is_text=True) if KEYS[name].kind.is_table else value
        return Node(
            stores[-1], mqtt={"retry_interval": 0.0, **groups["mqtt"]}, shared=groups["shared"], **groups["limits"]
        )

    yield make
    for store in stores:
        store.close()


class Stage:
    """The clients of one conversation.

    Args:
        conversation: is played.
        open_wire: opens a connection to the node; as Wire, without the port.
        advance: lets that many seconds pass at the node, if the test can.
    """

    def __init__(
        self,
        conversation: Conversation,
        open_wire: Callable[..., Wire],
        advance: Callable[[float], object] | None = None,
    ) -> None:
        self.conversation = conversation
        self.open_wire = open_wire
        self.advance = advance
        self.clients: dict[str, Wire] = {}
        self.names: set[str] = set()
        self.retained: set[str] = set()

    def client(self, name: str) -> Wire:
        if name not in self.clients:
            split = self.conversation.way == SPLIT
            self.clients[name] = self.open_wire(self.conversation.level, name, split=split)
            self.names.add(name)
        return self.clients[name]

    def play(self) -> None:
        if self.conversation.way == ONE_WRITE:
            self.play_in_one_write()
            return
        for number, step in enumerate(self.conversation.steps, 1):
            try:
                self.step(*step)
            except AssertionError as error:
                raise AssertionError(f"step {number}, {' '.join(step)}: {error}") from None

    def step(self, name: str, what: str = "", rest: str = "") -> None:
        if name == CLOCK:
            assert what == "advances" and self.advance is not None
            self.advance(float(rest))
        elif what == ">":
            self.note(name, rest)
            self.client(name).send(rest)
        elif what == "<" and rest.partition(" ")[0] == "closed":
            code = rest.partition(" ")[2]
            self.clients.pop(name).expect_end(int(code, 16) if code else None)
        elif what == "<":
            self.client(name).expect(rest)
        elif what == "nothing":
            for other in self.clients.values():
                if other is not self.clients[name]:
                    other.settle()
            self.clients[name].expect_nothing()
        elif what == "drop":
            self.clients.pop(name).drop()
        elif what == "reset":
            self.clients.pop(name).reset()
        else:
            raise ValueError(f"unknown step {what!r}")

    def note(self, name: str, line: str) -> None:
        """Note the names that are to be cleaned up."""
        words = line.split()
        self.names.update(word[3:] for word in words if word.startswith("id=") and words[0] == "connect")
        if "retain" in words:
            self.retained.update(word[5:] for word in words if word.startswith("will="))
            self.retained.update(words[1:2] if words[0] == "publish" else [])

    def play_in_one_write(self) -> None:
        """All that the client sends first; the answers must be the same."""
        (name,) = {step[0] for step in self.conversation.steps}
        sent = [rest for _, what, *rests in self.conversation.steps if what == ">" for rest in rests]
        for line in sent:
            self.note(name, line)
        client = self.client(name)
        client.send(*sent)
        for step in self.conversation.steps:
            if step[1] == "<":
                self.step(*step)
        if self.conversation.steps[-1][1] == "nothing":
            self.step(name, "nothing")

    def clean(self) -> None:
        """Leave the node as it was."""
        for client in self.clients.values():
            client.drop()
        for name in sorted(self.names):
            with self.open_wire(name=name[:23]) as client:
                client.send(f"connect id={name}")
                client.receive()
                if not client.closed:
                    client.close()
        with self.open_wire(name="cleaner") as client:
            client.connect()
            takes_retained = self.conversation.settings.get("mqtt.retain_available", True)
            for topic in sorted(self.retained) if takes_retained else ():
                client.send(f"publish {topic} retain")
            client.send("subscribe 1 #:0")
            client.expect("suback 1 0")
            client.expect_nothing()
            client.close()


def by_settings(found: list[Any]) -> list[Any]:
    """Those with the same settings one after the other."""
    return sorted(found, key=lambda param: repr(sorted(param.values[0].settings.items())))


ALL = list(load())
RESETS = [param for param in ALL if "reset" in {step[1] for step in param.values[0].steps}]
LOCAL = [
    param for param in ALL if param not in RESETS and param.values[0].nodes != "cluster"
]  # a Unix socket has no RST
SHARED_NODES = [param for param in ALL if not param.values[0].is_timed]  # nodes that a test can't advance
# A node's acts byte by byte and at another level are the same over a socket and without one.
OVER_SOCKETS = [
    param
    for param in SHARED_NODES
    if param.values[0].nodes != "cluster"
    and param.values[0].way == STEP
    and (param.values[0].level == 4 or param.values[0].only_level)
]
SPLIT_OVER_SOCKETS = [
    param for param in SHARED_NODES if param.values[0].way == SPLIT and param.values[0].nodes != "cluster"
][::6]
# Bytes are cut into packets before anything is asked of other nodes.
IN_A_CLUSTER = [param for param in SHARED_NODES if param.values[0].way != SPLIT and param.values[0].nodes != "alone"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("conversation", LOCAL)
def test_conversation(
    conversation: Conversation, local_node: Callable[..., Node], caplog: pytest.LogCaptureFixture
) -> None:
    node = local_node(conversation.settings)
    stage = Stage(conversation, partial(LocalWire, node), lambda seconds: node.advance(int(seconds * TICKS_PER_SECOND)))
    stage.play()
    stage.clean()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text


@pytest.mark.parametrize("conversation", by_settings(OVER_SOCKETS + SPLIT_OVER_SOCKETS))
def test_conversation_over_sockets(conversation: Conversation, nodes: Nodes) -> None:
    play(conversation, nodes("sqlite", conversation.settings))


@pytest.mark.parametrize("conversation", by_settings(IN_A_CLUSTER))
def test_conversation_with_a_cluster(conversation: Conversation, nodes: Nodes) -> None:
    play(conversation, nodes("cluster", conversation.settings))


def play(conversation: Conversation, node: Broker) -> None:
    """Play a conversation at a node that others use later; in a cluster, each client at another node."""
    stage = Stage(conversation, lambda *arguments, **more: Wire(node.port, *arguments, **more))
    try:
        stage.play()
        stage.clean()
        node.check()
    except BaseException:
        print(node.log_text())
        node.stop()  # the next one gets a fresh node
        raise


@pytest.mark.parametrize("store", ["memory"])
def test_an_expectation_that_fails_is_told(broker: Broker) -> None:
    with Wire(broker.port) as client:
        client.send("connect")
        with pytest.raises(AssertionError, match="awaited"):
            client.expect("connack 2")
        client.subscribe("a:0")
        client.send("publish a x")
        with pytest.raises(AssertionError, match="awaited nothing"):
            client.expect_nothing()


def test_lines_are_the_packets_they_say() -> None:
    assert parse_packet("hex 30 03 0001 =a", 4) == b"\x30\x03\x00\x01a"
    assert parse_packet("publish a/b x q1 id=10", 4) == b"\x32\x08\x00\x03a/b\x00\x0ax"
    assert parse_packet("connack present", 4) == b"\x20\x02\x01\x00"
    assert parse_packet("connack present", 3) == b"\x20\x02\x00\x00"
    assert (
        parse_packet("publish a x topic_alias=7 user=k:v", 5)
        == b"\x30\x0f\x00\x01a\x0a\x23\x00\x07\x26\x00\x01k\x00\x01vx"
    )
    assert parse_packet("publish a x topic_alias=7", 4) == b"\x30\x04\x00\x01ax"
    assert parse_packet("subscribe 1 a:1,nl,rap,rh2", 5) == b"\x82\x07\x00\x01\x00\x00\x01a\x2d"
    assert parse_packet("subscribe 1 a:1,nl,rap,rh2", 4) == b"\x82\x06\x00\x01\x00\x01a\x01"
    assert parse_packet("unsuback 2 0 0x11", 5) == b"\xb0\x05\x00\x02\x00\x00\x11"
    assert parse_packet("unsuback 2 0 0x11", 4) == b"\xb0\x02\x00\x02"
    assert parse_packet("puback 2 code=0x10", 5) == b"\x40\x03\x00\x02\x10"
    assert parse_packet("puback 2 code=0x10", 4) == b"\x40\x02\x00\x02"


@pytest.mark.parametrize(
    ("came", "right"),
    [
        ("disconnect 0x82 reason=wrong", True),
        ("disconnect 0x82 reason=right", False),
        ("disconnect 0x81 reason=wrong", False),
        ("disconnect 0x82 reason=wrong user=a:b", False),
    ],
)
def test_a_reason_contains_a_text(came: str, right: bool) -> None:
    assert Awaited("disconnect 0x82 reason~ron", 5).matches(parse_packet(came, 5)) == right


def test_the_order_of_properties_is_free_but_not_that_of_user_properties() -> None:
    awaited = Awaited("publish a content_type=t response_topic=r user=a:1 user=b:2", 5)
    assert awaited.matches(parse_packet("publish a user=a:1 response_topic=r user=b:2 content_type=t", 5))
    assert not awaited.matches(parse_packet("publish a user=b:2 response_topic=r user=a:1 content_type=t", 5))
