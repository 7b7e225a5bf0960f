"""Plays the conversations of `conversations/*.toml` against a node: each with every store, at each level it names.

A conversation is an entry with `name`, `statement`, optional `levels`, `settings` of the node, `one_write`, and
`steps`, one a line:

    a > PACKET       client a sends; the first time, and after its end, it connects to the node
    a < PACKET       exactly these bytes are what a gets next
    a < closed       the node closes a's connection, having sent nothing more
    a nothing        a gets nothing, though the node has acted on and stored all that everybody sent
    a drop | reset   a's network connection ends, by FIN or RST
    restart          the node is stopped and started again

PACKET is what wire.py's `parse_packet` reads; a client id is the client's name unless given. Conversations of one
client marked `one_write` are played three times: step by step, byte by byte, and with all that is sent in one write.
"""

import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness.cluster_process import Broker, make_broker
from tests.protocol.wire import Wire, parse_packet

HERE = Path(__file__).parent / "conversations"
STEP, SPLIT, ONE_WRITE = "step by step", "byte by byte", "one write"


class Conversation(NamedTuple):
    name: str
    statement: str
    level: int
    way: str  # STEP, SPLIT or ONE_WRITE
    settings: dict[str, Any]
    steps: list[list[str]]  # words: client, what, rest of the line


def load() -> Iterator[Any]:
    for file in sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(file.read_text("utf-8"))["conversation"]:
            steps = [line.split(None, 2) for line in entry["steps"].splitlines() if line.strip()]
            for level in entry.get("levels", [3, 4]):
                for way in (STEP, SPLIT, ONE_WRITE) if entry.get("one_write") else (STEP,):
                    conversation = Conversation(
                        entry["name"], entry["statement"], level, way, entry.get("settings", {}), steps
                    )
                    name = f"{file.stem}: {entry['name']} [{level}{'' if way == STEP else ', ' + way}]"
                    yield pytest.param(conversation, id=name)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Callable[[str, dict[str, Any]], Broker]]:
    """Brokers that conversations share, one for each store and settings; a conversation leaves no traces in them."""
    running: dict[str, Broker] = {}
    directory = Path(tempfile.mkdtemp(prefix="flockmq-test-"))

    def get(store: str, settings: dict[str, Any]) -> Broker:
        key = repr((store, sorted(settings.items())))
        if key in running and running[key].running:
            return running[key]
        place = directory / f"{len(list(directory.iterdir()))}"
        place.mkdir()
        if key in running:
            running[key].close()
        running[key] = make_broker(place, store, {"mqtt.sys_interval": 0, **settings}).start()
        return running[key]

    yield get
    for node in running.values():
        node.close()
        node.check()
    shutil.rmtree(directory)


class Stage:
    """The clients of one conversation."""

    def __init__(self, conversation: Conversation, node: Broker) -> None:
        self.conversation = conversation
        self.node = node
        self.clients: dict[str, Wire] = {}
        self.names: set[str] = set()
        self.retained: set[str] = set()

    def client(self, name: str) -> Wire:
        if name not in self.clients:
            split = self.conversation.way == SPLIT
            self.clients[name] = Wire(self.node.port, self.conversation.level, name, split=split)
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
        if name == "restart":
            self.node.restart()
        elif what == ">":
            self.note(name, rest)
            self.client(name).send(rest)
        elif what == "<" and rest == "closed":
            self.clients.pop(name).expect(None)
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
        """What is to be cleaned up."""
        words = line.split()
        self.names.update(word[3:] for word in words if word.startswith("id=") and words[0] == "connect")
        if "retain" in words:
            self.retained.update(word[5:] for word in words if word.startswith("will="))
            self.retained.update(words[1:2] if words[0] == "publish" else [])

    def play_in_one_write(self) -> None:
        """All that the one client sends first; the answers must be the same."""
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
            with Wire(self.node.port, name=name[:23]) as client:
                client.send(f"connect id={name}")
                client.receive()
                if not client.closed:
                    client.close()
        with Wire(self.node.port, name="cleaner") as client:
            client.connect()
            for topic in sorted(self.retained):
                client.send(f"publish {topic} retain")
            client.send("subscribe 1 #:0")
            client.expect("suback 1 0")
            client.expect_nothing()
            client.close()


@pytest.mark.parametrize("conversation", list(load()))
def test_conversation(conversation: Conversation, store: str, nodes: Callable[[str, dict[str, Any]], Broker]) -> None:
    node = nodes(store, conversation.settings)
    stage = Stage(conversation, node)
    try:
        stage.play()
        stage.clean()
        node.check()
    except BaseException:
        print(node.log_text())
        node.stop()  # the next one gets a fresh node
        raise


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
