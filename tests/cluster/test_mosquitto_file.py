"""mosquitto.db in every format version, whole, cut and damaged.

The files of versions 3, 4 and 5 are made by hand here, field by field as Mosquitto 1.4.9, 1.5.6 and 1.6 write them. A
real Mosquitto, which reads all of them and writes version 6, judges them: it must find in them what FlockMQ finds.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from flockmq.broker.cli import main
from flockmq.broker.config.load import load
from flockmq.broker.core.session_expiry import NEVER
from flockmq.broker.storage import sqlite_file
from flockmq.cluster.migration.mosquitto_file import (
    MAGIC,
    CutFile,
    DamagedFile,
    Delivery,
    Retained,
    StoredClient,
    StoredMessage,
    StoredSubscription,
    chunks,
)
from flockmq.cluster.migration.mosquitto_state import MosquittoState
from flockmq.cluster.migration.sqlite_state import SqliteState
from flockmq.cluster.migration.state import Queued, StoredSession, wall_clock
from flockmq.cluster.migration.state import StoredMessage as Message
from tests.harness.broker_process import environment
from tests.harness.deadline import DEADLINE
from tests.harness.mosquitto_process import MosquittoProcess

SETTINGS, MESSAGE, DELIVERY, RETAINED, SUBSCRIPTION, CLIENT = range(1, 7)  # kinds of chunks
WAIT_FOR_PUBACK, WAIT_FOR_PUBREC, WAIT_FOR_PUBREL, WAIT_FOR_PUBCOMP, QUEUED = 3, 5, 7, 9, 11
IN, OUT = 0, 1
MESSAGES = 6  # of `rich`
NOW = wall_clock() // 1000
PROPERTIES = b"\x03\x00\x04text"  # content type
IDENTIFIER = b"\x0b\x07"
CONFIG = load({})


def text(value: bytes) -> bytes:
    return pack(">H", len(value)) + value


class File:
    """A mosquitto.db that grows chunk by chunk.

    Args:
        version: 3 to 6.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.data = MAGIC + pack(">II", 0, version)
        self.offsets: list[int] = []  # where chunks begin
        settings = pack("<BBQ", 1, 8, 99) if version < 5 else pack("<QBB6x", 99, 1, 8)
        self.chunk(SETTINGS, settings)

    def chunk(self, kind: int, content: bytes, length: int | None = None) -> None:
        self.offsets.append(len(self.data))
        head = ">HI" if self.version < 5 else ">II"
        self.data += pack(head, kind, len(content) if length is None else length) + content

    def message(self, store_id: int, topic: bytes, payload: bytes, qos: int, retain: int = 0, expires: int = 0) -> None:
        source = b"publisher"
        if self.version < 5:
            content = pack("<Q", store_id) + text(source)
            if self.version == 4:
                content += text(b"ada") + pack(">H", 1883)
            content += pack(">HH", 3, 4) + text(topic) + pack(">BBI", qos, retain, len(payload)) + payload
            self.chunk(MESSAGE, content, len(content) + len(source) * (self.version == 4))  # 1.5.6 adds it twice
            return
        lengths = (len(payload), 3, len(source), 3, len(topic), 1883, qos, retain)
        block = pack("B", len(PROPERTIES)) + PROPERTIES if retain else b""
        fixed = pack("<Qq", store_id, expires) + pack(">IHHHHHBB", *lengths)
        self.chunk(MESSAGE, fixed + source + b"ada" + topic + payload + block)

    def client(
        self, client_id: bytes, last: int, interval: int = NEVER, expires: int = 0, user: bytes = b"", port: int = 1883
    ) -> None:
        if self.version < 5:
            self.chunk(CLIENT, text(client_id) + pack(">H", last) + pack("<q", NOW - 60))
            return
        fixed = pack("<q", expires) + pack(">IHH", interval, last, len(client_id))
        if self.version == 6:
            fixed += pack(">HH4x", port, len(user))
        self.chunk(CLIENT, fixed + client_id + user)

    def delivery(
        self, client_id: bytes, store_id: int, packet_id: int, qos: int, state: int, direction: int = OUT
    ) -> None:
        dup = int(state in (WAIT_FOR_PUBACK, WAIT_FOR_PUBREC))
        if self.version < 5:
            numbers = pack(">HBBBBB", packet_id, qos, 0, direction, state, dup)
            self.chunk(DELIVERY, text(client_id) + pack("<Q", store_id) + numbers)
            return
        numbers = pack(">HHBBBB", packet_id, len(client_id), qos, state, dup, direction)
        block = pack("B", len(IDENTIFIER)) + IDENTIFIER if direction == OUT else b""
        self.chunk(DELIVERY, pack("<Q", store_id) + numbers + client_id + block)

    def subscription(self, client_id: bytes, topic_filter: bytes, qos: int, options: int = 0) -> None:
        if self.version < 5:
            self.chunk(SUBSCRIPTION, text(client_id) + text(topic_filter) + pack("B", qos))
            return
        fixed = pack(">IHHBB2x", 0, len(client_id), len(topic_filter), qos, options)
        self.chunk(SUBSCRIPTION, fixed + client_id + topic_filter)

    def retained(self, store_id: int) -> None:
        self.chunk(RETAINED, pack("<Q", store_id))


def rich(version: int) -> File:
    """A file with something of everything."""
    file = File(version)
    for store_id, qos in ((1, 1), (2, 2), (3, 2), (4, 1), (5, 2)):
        file.message(store_id, b"a/%d" % store_id, b"%d" % store_id, qos)
    file.message(6, b"kept", b"retained", 1, 1, NOW + 100_000)
    file.client(b"four", 65_535)
    file.delivery(b"four", 5, 9, 2, WAIT_FOR_PUBREL, IN)
    file.delivery(b"four", 1, 65_533, 1, WAIT_FOR_PUBACK)
    file.delivery(b"four", 2, 65_534, 2, WAIT_FOR_PUBCOMP)
    file.delivery(b"four", 3, 1, 2, WAIT_FOR_PUBREC)  # after 65535, which is done
    file.delivery(b"four", 4, 2, 1, QUEUED)
    file.client(b"idle", 41)
    file.subscription(b"four", b"a/+/#", 2)
    file.subscription(b"idle", b"/b", 1)
    file.retained(6)
    return file


def state_of(data: bytes) -> MosquittoState:
    return MosquittoState(chunks(data), CONFIG)


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_all_of_a_file_is_found(version: int) -> None:
    state = state_of(rich(version).data)
    identifiers = b"" if version < 5 else IDENTIFIER
    four, idle = state.sessions()
    assert (four.client_id, four.head, four.tail, four.sent) == (b"four", 65_533, 65_538, 65_537)
    assert four.queue == {
        65_533: Queued(Message(b"a/1", b"1", 1, False), identifiers=identifiers),
        65_534: Queued(None),
        65_536: Queued(Message(b"a/3", b"3", 2, False), identifiers=identifiers),
        65_537: Queued(Message(b"a/4", b"4", 1, False), identifiers=identifiers),
    }
    assert four.awaiting == {9: Message(b"a/5", b"5", 2, False)}
    assert four.subscriptions == {b"a/+/#": (2, 0)}
    assert (idle.head, idle.tail, idle.queue, idle.subscriptions) == (42, 42, {}, {b"/b": (1, 0)})
    assert [(session.level, session.interval, session.deadline) for session in (four, idle)] == [(4, None, 0)] * 2
    properties, expires = (b"", 0) if version < 5 else (PROPERTIES, (NOW + 100_000) * 1000)
    assert [*state.retained()] == [Message(b"kept", b"retained", 1, True, properties, expires)]
    assert state.losses() == []


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[MosquittoProcess]:
    """A Mosquitto that keeps its state, not started."""
    if not MosquittoProcess.is_installed():
        pytest.skip("mosquitto is not installed")
    process = MosquittoProcess(tmp_path, "user root", "persistence true", f"persistence_location {tmp_path}/")
    yield process
    process.kill()


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_mosquitto_finds_the_same(version: int, mosquitto: MosquittoProcess, tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.db"
    path.write_bytes(rich(version).data)
    here = state_of(path.read_bytes())
    mosquitto.start()
    mosquitto.save(path)
    data = path.read_bytes()
    assert data.startswith(MAGIC + pack(">II", 0, 6))
    there = state_of(data)
    assert sessions(there) == sessions(here)
    (found,), (given,) = there.retained(), here.retained()
    assert found._replace(deadline=given.deadline) == given
    assert abs(found.deadline - given.deadline) < 60_000  # Mosquitto counts the seconds that are left, from its clock


def sessions(state: MosquittoState) -> dict[bytes, StoredSession]:
    """By client id; their numbers are their places in the file."""
    found = {session.client_id: session for session in state.sessions()}
    for session in found.values():
        session.number = 0
    return found


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_a_file_that_is_cut_names_the_place(version: int) -> None:
    """At every byte: the chunks before the cut one are found, and the error has the cut chunk's begin."""
    file = rich(version)
    ends = [*file.offsets[1:], len(file.data)]
    whole = [*chunks(file.data)]
    for size in range(len(MAGIC), len(file.data)):
        found = []
        before = ends.index(size) if size in ends else -1  # chunks, without the settings
        if before == 0 or before > MESSAGES:  # nothing shows that any is missing
            assert [*chunks(file.data[:size])] == whole[:before]
            continue
        begin = max([offset for offset in file.offsets if offset < size], default=len(MAGIC))
        words = f"at byte {begin}: the file ends within"
        if before > 0:
            words = f"at byte {size}: the file ends after its messages"
        elif size == file.offsets[0]:
            words = f"at byte {size}: the file ends after its header"
        with pytest.raises(CutFile, match=words):
            found.extend(chunks(file.data[:size]))
    assert len(whole) == len(file.offsets) - 1  # no settings


def test_a_damaged_file_is_an_error_with_its_place() -> None:
    good = rich(6)

    def fails(data: bytes, offset: int, reason: str) -> None:
        with pytest.raises(DamagedFile, match=f"at byte {offset}: {reason}") as failed:
            [*chunks(data)]
        assert not isinstance(failed.value, CutFile)

    def changed(at: int, *values: int) -> bytes:
        return good.data[:at] + bytes(values) + good.data[at + len(values) :]

    fails(b"SQLite format 3\0" + bytes(99), 0, "it does not begin as")
    fails(changed(len(MAGIC) + 7, 7), len(MAGIC) + 4, "its format version is 7; 3 to 6 are known")
    _, first, *_ = good.offsets
    fails(changed(first + 3, 7), first, "there is no chunk of kind 7")
    fails(changed(first + 8 + 30, 3), first, "a QoS of 3")
    fails(changed(first + 8 + 26, 0, 255), first, "a field does not end within its chunk")
    fails(changed(first + 8 + 32 + 12, 0xFF), first, ".*decode|.*UTF-8")
    client = good.offsets[7]
    fails(changed(client + 8 + 15, 3), client, "the lengths of a client do not add up")
    delivery = good.offsets[9]
    fails(changed(delivery + 8 + 13, 12), delivery, "a delivery has a state")
    subscription = good.offsets[14]
    fails(changed(subscription + 8 + 12 + 4, ord("#")), subscription, "")
    fails(changed(good.offsets[0] + 8 + 9, 4), good.offsets[0], "the identifiers of its messages have 4 bytes")


def test_a_machine_of_32_bits_wrote_it() -> None:
    """Its structures have no padding at their ends."""
    file = File(6)
    fixed = pack("<q", 0) + pack(">IHHHH", NEVER, 5, 4, 1883, 3)
    file.chunk(CLIENT, fixed + b"fourada")
    assert [*chunks(file.data)] == [StoredClient(b"four", 5, NEVER, 0, user=b"ada", port=1883)]


def test_time_goes_on() -> None:
    """Intervals of level 5 and the time of `mqtt.session_expiry` go on from where they were."""
    file = File(6)
    file.client(b"away", 0, 3600, NOW + 100)
    file.client(b"there", 0, 3600)
    file.client(b"long", 0, 99_999, NOW + 99_999)
    file.client(b"configured", 0, NEVER, NOW + 50)
    file.client(b"ended", 0, 0)
    config = load({"mqtt.session_expiry": "1000", "mqtt.max_session_expiry": "5000"})
    found = {session.client_id: session for session in MosquittoState(chunks(file.data), config).sessions()}
    assert {name: (session.level, session.interval) for name, session in found.items()} == {
        b"away": (5, 3600),
        b"there": (5, 3600),
        b"long": (5, 5000),
        b"configured": (4, None),
    }
    assert found[b"away"].deadline == (NOW + 100) * 1000
    deadline = found[b"there"].deadline
    assert deadline is not None and (NOW + 3600) * 1000 <= deadline <= wall_clock() + 3_600_000
    assert found[b"configured"].deadline == (NOW + 50) * 1000
    old = MosquittoState(chunks(rich(3).data), config)
    assert {session.deadline for session in old.sessions()} == {(NOW - 60 + 1000) * 1000}


def test_what_stays_behind_is_counted() -> None:
    file = File(6)
    file.message(1, b"a", b"1", 1)
    file.client(b"brief", 0, 0)
    file.delivery(b"brief", 1, 1, 1, QUEUED)
    for number in range(4):
        file.client(b"bridge-%d" % number, 0, 0, port=0)
    file.client(b"four", 0)
    file.delivery(b"four", 1, 0, 0, QUEUED)
    file.delivery(b"four", 99, 1, 1, QUEUED)
    file.delivery(b"nobody", 1, 1, 1, QUEUED)
    state = state_of(file.data)
    assert [session.client_id for session in state.sessions()] == [
        b"bridge-0",
        b"bridge-1",
        b"bridge-2",
        b"bridge-3",
        b"four",
    ]
    assert state.losses() == [
        "2 entries name a message or a client that the file does not have",
        "1 queued messages of QoS 0 stay behind: FlockMQ queues QoS 1 and 2",
        "1 sessions (brief) stay behind: they end with their connections",
        "4 sessions (bridge-0, bridge-1, bridge-2, ...) never expire: they are those of bridges, or as old as "
        "Mosquitto 1.5",
    ]


def test_properties_that_are_not_for_subscribers_are_left_out() -> None:
    file = File(6)
    block = b"\x02\x00\x00\x00\x09" + PROPERTIES + b"\x23\x00\x01"
    fixed = pack("<Qq", 1, 0) + pack(">IHHHHHBB", 1, 0, 0, 0, 1, 0, 1, 0)
    file.chunk(MESSAGE, fixed + b"ax" + pack("B", len(block)) + block)
    file.retained(1)
    assert [*chunks(file.data)] == [StoredMessage(1, b"a", b"x", 1, False, PROPERTIES), Retained(1)]


def test_options_and_shared_subscriptions() -> None:
    file = File(5)
    file.client(b"five", 0)
    file.subscription(b"five", b"a/#", 1, 4 | 8 | 0x20)
    file.subscription(b"five", b"$share/group/b", 1)
    assert [*chunks(file.data)][1:] == [
        StoredSubscription(b"five", b"a/#", 13),
        StoredSubscription(b"five", b"$share/group/b", 1),
    ]
    state = state_of(file.data)
    (five,) = state.sessions()
    assert (five.level, five.interval, [group.name for group in state.groups()]) == (5, NEVER, [b"$share/group/b"])


def test_a_delivery_has_its_fields() -> None:
    file = File(6)
    file.delivery(b"four", 1, 7, 2, WAIT_FOR_PUBREC)
    assert [*chunks(file.data)] == [
        Delivery(b"four", 1, 7, 2, WAIT_FOR_PUBREC, retain=False, dup=True, outgoing=True, identifiers=IDENTIFIER)
    ]


# ---- the command ----


def sessions_of(path: Path) -> dict[bytes, StoredSession]:
    """The sessions in a SQLite store."""
    with contextlib.closing(sqlite_file.connect(path)) as database:
        state = SqliteState(block for _, block in sqlite_file.blocks(database, path))
        return {session.client_id: session for session in state.sessions()}


def test_sessions_keep_their_users_unless_these_were_not_verified(tmp_path: Path) -> None:
    path, one, other = (tmp_path / name for name in ("mosquitto.db", "one.db", "other.db"))
    file = File(6)
    file.client(b"four", 0, user=b"ada")
    path.write_bytes(file.data)
    assert main(["import", str(path), f"sqlite:{one}"]) == 0
    assert main(["import", str(path), f"sqlite:{other}", "--no-users"]) == 0
    assert [session.user for session in sessions_of(one).values()] == [b"ada"]
    assert [session.user for session in sessions_of(other).values()] == [b""]


def test_a_store_with_state_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, store = tmp_path / "mosquitto.db", tmp_path / "flockmq.db"
    path.write_bytes(rich(6).data)
    assert main(["import", str(path), f"sqlite:{store}"]) == 0
    before = store.read_bytes()
    assert main(["import", str(path), f"sqlite:{store}"]) == 1
    assert "has state already, which would be lost" in capsys.readouterr().err
    assert store.read_bytes() == before


def test_a_cut_file_is_imported_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, store = tmp_path / "mosquitto.db", tmp_path / "flockmq.db"
    file = rich(6)
    path.write_bytes(file.data[:-1])
    assert main(["import", str(path), f"sqlite:{store}"]) == 1
    assert f"is cut at byte {file.offsets[-1]}: the file ends within a chunk" in capsys.readouterr().err
    assert not store.exists()
    assert main(["import", str(path), f"sqlite:{store}", "--partial"]) == 0
    output = capsys.readouterr()
    assert "2 sessions with 2 subscriptions" in output.out and " 0 retained messages" in output.out
    assert f"at byte {file.offsets[-1]}: the file ends within a chunk: what stood there" in output.err


def test_a_file_that_ends_after_its_messages_is_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, store = tmp_path / "mosquitto.db", tmp_path / "flockmq.db"
    file = rich(6)
    end = file.offsets[MESSAGES + 1]
    path.write_bytes(file.data[:end])
    assert main(["import", str(path), f"sqlite:{store}"]) == 1
    assert f"is cut at byte {end}: the file ends after its messages" in capsys.readouterr().err
    assert not store.exists()
    assert main(["import", str(path), f"sqlite:{store}", "--partial"]) == 0


def test_wrong_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf, path = tmp_path / "mosquitto.conf", tmp_path / "mosquitto.db"
    conf.write_text("persistence true\n")
    path.write_bytes(b"")
    for arguments, status, message in (
        (["import", str(path)], 2, "name the store that gets it"),
        (["import", str(path), "sqlite:x.db"], 1, "is damaged at byte 0: it does not begin as"),
        (["import", str(conf), "sqlite:x.db"], 2, "is no mosquitto.db"),
        (["import", str(tmp_path / "other.db"), "sqlite:x.db"], 1, "can't be read: No such file"),
        (["migrate", f"mosquitto:{path}", f"mosquitto:{path}"], 2, "names no place"),
        (["migrate", "sqlite:x.db", "redis://127.0.0.1", "--partial"], 2, "--no-users and --partial are for"),
    ):
        assert main(arguments) == status
        assert message in capsys.readouterr().err
    assert main(["import", str(conf)]) == 0
    assert not Path("x.db").exists()


def test_one_node_needs_no_library_of_redis(tmp_path: Path) -> None:
    path, store = tmp_path / "mosquitto.db", tmp_path / "flockmq.db"
    path.write_bytes(rich(6).data)
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from flockmq.broker.cli import main\n"
        f"sys.exit(main(['import', {str(path)!r}, 'sqlite:{store}']))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE, env=environment())
    assert store.exists()
