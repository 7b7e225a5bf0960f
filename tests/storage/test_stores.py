"""The suite for each store, and damage that only a file can suffer."""

import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flockmq.broker.errors import StoreError
from flockmq.broker.storage import confirmed_note, sqlite_file
from flockmq.broker.storage import sqlite as sqlite_store
from flockmq.broker.storage.memory import MemoryStore
from flockmq.broker.storage.sqlite import SqliteStore
from flockmq.broker.storage.store import Store
from tests.harness.deadline import DEADLINE
from tests.storage.store_suite import Loop, Opener, StoreSuite, opened, some_blocks

# Each store is one line: its name, and how to open it with its state in a directory.
STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda directory: MemoryStore(),
    "sqlite-full": lambda directory: SqliteStore(directory / "store.db", sync="full"),
    "sqlite-normal": lambda directory: SqliteStore(directory / "store.db", sync="normal"),
}


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.05)
    stores: list[Store] = []

    def make() -> Store:
        stores.append(STORES[request.param](tmp_path))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


class TestStore(StoreSuite):
    pass


# ---- a file that is not as it was left ----


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store file with blocks in it, closed."""
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.05)
    path = tmp_path / "store.db"
    fill(path, some_blocks(40, largest=2000))
    return path


def fill(path: Path, blocks: list[bytes]) -> None:
    store = SqliteStore(path)
    opened(store)
    for block in blocks:
        store.commit(block)
    store.close()


def edit(path: Path, *statements: str) -> None:
    """Change the database as another program would."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        for statement in statements:
            database.execute(statement)


def refusal(path: Path) -> StoreError:
    """Open the store, which must be refused in one clear line, and must leave every file as it was."""
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir() if entry.is_file()}
    store = SqliteStore(path)
    with pytest.raises(StoreError) as caught:
        list(store.open())
    store.close()
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir() if entry.is_file()} == before
    assert str(path) in caught.value.message
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_no_bytes_are_refused(path: Path) -> None:
    path.write_bytes(b"")
    assert "empty" in refusal(path).message


def test_random_bytes_are_refused(path: Path) -> None:
    path.write_bytes(random.Random(3).randbytes(path.stat().st_size))
    assert "damaged" in refusal(path).message


@pytest.mark.parametrize("part", [0.02, 0.2, 0.5, 0.8, 0.97])
def test_a_cut_file_is_refused(path: Path, part: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    assert "damaged" in refusal(path).message


def test_a_flipped_bit_in_a_block_is_refused(path: Path) -> None:
    data = bytearray(path.read_bytes())
    block = max(some_blocks(40, largest=2000), key=len)
    data[data.index(block) + len(block) // 2] ^= 4
    path.write_bytes(data)
    assert "damaged" in refusal(path).message


def test_a_flipped_bit_anywhere_is_refused_or_harmless(path: Path) -> None:
    whole = path.read_bytes()
    blocks = some_blocks(40, largest=2000)
    rng = random.Random(4)
    places = [*range(110), *rng.choices(range(len(whole)), k=300)]  # all of the header, some of the rest
    refused = 0
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        store = SqliteStore(path)
        try:
            found = list(store.open())
        except StoreError as error:
            assert "\n" not in str(error)
            refused += 1
            store.close()
            assert path.read_bytes() == bytes(data)
        else:
            assert found == blocks, f"byte {place}"
            store.close()
    assert refused > 200


def test_a_missing_block_is_refused(path: Path) -> None:
    edit(path, "DELETE FROM block WHERE position = 7")
    assert "block 7 is missing" in refusal(path).message


def test_a_changed_block_is_refused(path: Path) -> None:
    edit(path, "UPDATE block SET records = zeroblob(length(records)) WHERE position = 9")
    assert "damaged" in refusal(path).message


@pytest.mark.parametrize("value", ["NULL", "'text'", "7", "1.5"])
@pytest.mark.parametrize("column", ["records", "checksum"])
def test_a_value_of_another_type_is_refused(path: Path, column: str, value: str) -> None:
    if value == "NULL":
        edit(
            path,
            "CREATE TABLE loose (position INTEGER PRIMARY KEY, checksum, records)",
            "INSERT INTO loose SELECT * FROM block",
            "DROP TABLE block",
            "ALTER TABLE loose RENAME TO block",
        )
    edit(path, f"UPDATE block SET {column} = {value} WHERE position = 9")
    assert "damaged" in refusal(path).message


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    edit(path, "CREATE TABLE block (position INTEGER PRIMARY KEY, checksum INTEGER, records BLOB)")
    assert "not FlockMQ's" in refusal(path).message


@pytest.mark.parametrize("layout", [0, 2, 99])
def test_another_layout_is_refused(path: Path, layout: int) -> None:
    edit(path, f"PRAGMA user_version = {layout}")
    assert f"layout {layout}" in refusal(path).message


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    refusal(tmp_path / "store.db")


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "nowhere" / "store.db")
    with pytest.raises(StoreError, match="No such file"):
        list(store.open())
    assert not (tmp_path / "nowhere").exists()


def as_nobody(work: Callable[[], str]) -> str:
    """Run in a child process that may not do what root may."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        found = answer.read().decode()
    os.waitpid(child, 0)
    return found


def what_opening_says(path: Path) -> str:
    try:
        list(SqliteStore(path).open())
    except StoreError as error:
        return str(error)
    except BaseException as error:
        return f"not a StoreError: {error!r}"
    return "opened"


def open_to_all(directory: Path) -> None:
    """Let nobody reach the directory, whatever the test run's own directories allow."""
    for parent in [directory, *directory.parents]:
        if parent.owner() == Path.home().owner() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


def test_an_unwritable_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    open_to_all(tmp_path)
    try:
        said = as_nobody(lambda: what_opening_says(tmp_path / "store.db"))
    finally:
        tmp_path.chmod(0o755)
    assert "can't be written: Permission denied" in said
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_file_is_refused(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)
    open_to_all(path.parent)
    before = path.read_bytes()
    try:
        said = as_nobody(lambda: what_opening_says(path))
    finally:
        path.parent.chmod(0o755)
    assert said.startswith(f"{path} can't be opened"), said
    assert "\n" not in said
    assert path.read_bytes() == before


def test_a_new_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    fill(tmp_path / "store.db", [b"secret"])
    assert (tmp_path / "store.db").stat().st_mode & 0o077 == 0


def test_of_two_that_create_the_file_at_once_neither_loses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.05)
    path = tmp_path / "store.db"
    slow, fast = SqliteStore(path), SqliteStore(path)
    create = sqlite_file.create

    def overtaken(path: Path) -> None:
        monkeypatch.setattr(sqlite_file, "create", create)
        opened(fast)
        fast.commit(b"kept")
        create(path)

    monkeypatch.setattr(sqlite_file, "create", overtaken)
    with pytest.raises(StoreError, match="in use"):
        list(slow.open())
    fast.close()
    assert list(SqliteStore(path).open()) == [b"kept"]


def test_a_process_that_ended_while_it_made_the_file_keeps_no_other_from_it(tmp_path: Path) -> None:
    """In a container each process has the same number, so a file named by it was in the way for ever."""
    (tmp_path / f"store.db.new-{os.getpid()}").touch()
    assert list(SqliteStore(tmp_path / "store.db").open()) == []


# ---- a disk that is full ----


def test_a_full_disk_at_the_start_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with pytest.raises(StoreError, match="full; make room"), sqlite_file.reported(path):
        database = sqlite3.connect(path)
        database.execute("PRAGMA max_page_count = 1")
        database.execute("CREATE TABLE block (position INTEGER PRIMARY KEY)")
    with pytest.raises(StoreError, match="No space left on device; make room"), sqlite_file.reported(path):
        Path("/dev/full").write_bytes(b"x")


def test_a_full_disk_confirms_nothing_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "RETRY_SECONDS", 0.01)
    store = SqliteStore(tmp_path / "store.db")
    loop, _ = opened(store)
    store.commit(b"before")
    loop.wait_for(1)
    failed = threading.Semaphore(0)
    transaction = store._transaction

    def watched(blocks: list[bytes], forget: int) -> int:
        try:
            return transaction(blocks, forget)
        except sqlite3.Error:
            failed.release()
            raise

    monkeypatch.setattr(store, "_transaction", watched)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    try:
        blocks = some_blocks(8, largest=400_000)
        for block in blocks:
            store.commit(block)
        for _ in range(3):  # it tries again, and again
            assert failed.acquire(timeout=DEADLINE)
        loop.drain()
        confirmed = loop.confirmed
        assert confirmed < 1 + len(blocks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    loop.wait_for(1 + len(blocks))
    store.close()
    assert list(SqliteStore(tmp_path / "store.db").open()) == [b"before", *blocks]


def test_closing_with_a_full_disk_ends_and_keeps_what_was_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "RETRY_SECONDS", 0.01)
    store = SqliteStore(tmp_path / "store.db")
    loop, _ = opened(store)
    store.commit(b"before")
    loop.wait_for(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    try:
        store.commit(bytes(1_000_000))
        store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    loop.drain()
    assert loop.confirmed == 1
    assert list(SqliteStore(tmp_path / "store.db").open()) == [b"before"]


# ---- other errors of the thread that writes ----


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, times: int) -> None:
    """Let the next transactions fail."""
    insert = sqlite_file.insert
    left = [error] * times

    def insert_or_fail(database: sqlite3.Connection, position: int, block: bytes) -> None:
        if left:
            raise left.pop()
        insert(database, position, block)

    monkeypatch.setattr(sqlite_file, "insert", insert_or_fail)


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.DatabaseError("database disk image is malformed"),
        sqlite3.OperationalError("no such table: block"),
        sqlite3.IntegrityError("UNIQUE constraint failed: block.position"),
        OverflowError("BLOB longer than INT_MAX bytes"),
        AttributeError("a fault of the code"),
        SystemExit(),
    ],
)
def test_any_other_exception_is_the_failure_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The thread ended without a word, or tried again for ever: the node waited."""
    store = SqliteStore(tmp_path / "store.db")
    loop, _ = opened(store)
    store.commit(b"before")
    loop.wait_for(1)
    assert store.failure is None
    thread = store._thread
    assert thread is not None
    failing(monkeypatch, error, 1000)
    store.commit(b"lost")
    thread.join(DEADLINE)
    assert not thread.is_alive()
    store.commit(b"later")
    store.close()
    loop.drain()
    assert loop.confirmed == 1
    assert store.failure is not None
    assert type(error).__name__ in store.failure.message
    assert list(SqliteStore(tmp_path / "store.db").open()) == [b"before"]


def test_a_lack_of_memory_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "RETRY_SECONDS", 0.01)
    store = SqliteStore(tmp_path / "store.db")
    loop, _ = opened(store)
    failing(monkeypatch, MemoryError(), 3)
    store.commit(b"one")
    loop.wait_for(1)
    store.close()
    assert store.failure is None
    assert list(SqliteStore(tmp_path / "store.db").open()) == [b"one"]


# ---- blocks that were confirmed and are not there ----


def copy(path: Path, to: Path) -> Path:
    """The files of a store as kill -9 would leave them: the store is open."""
    to.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copyfile(file, to / file.name)
    return to / path.name


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def note_of(path: Path) -> Path:
    return path.with_name(path.name + "-confirmed")


def killed(tmp_path: Path, sync: str = "full") -> Path:
    """A store with 40 blocks as kill -9 leaves it, some of them in the -wal file only."""
    store = SqliteStore(tmp_path / "store.db", sync=sync)
    loop, _ = opened(store)
    for number in range(40):  # a transaction each
        store.commit(bytes([number]) * 2000)
        loop.wait_for(number + 1)
    store.forget_before(1)  # without an effect: when it is done, the last block is noted
    loop.step()
    path = copy(store.path, tmp_path / "killed")
    store.close()
    return path


def lacks(path: Path, caplog: pytest.LogCaptureFixture, sync: str = "full") -> list[str]:
    """Open and close the store: the levels of the lines about blocks that it lacks."""
    caplog.clear()
    store = SqliteStore(path, sync=sync)
    list(store.open())
    store.close()
    return [record.levelname for record in caplog.records if "store lacks" in record.message]


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_nothing_is_missing_after_a_kill_or_a_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture, sync: str) -> None:
    path = killed(tmp_path, sync)
    assert lacks(path, caplog, sync) == []
    assert lacks(tmp_path / "store.db", caplog, sync) == []


@pytest.mark.parametrize("part", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("damage", ["cut", "flipped bit"])
def test_a_damaged_end_of_the_write_ahead_log_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, part: float
) -> None:
    """SQLite takes it for the end of the log."""
    path = killed(tmp_path)
    data = bytearray(wal_of(path).read_bytes())
    place = int(len(data) * part)
    data[place] ^= 1
    wal_of(path).write_bytes(data[:place] if damage == "cut" else data)
    assert lacks(path, caplog) == ["ERROR"]


def test_a_block_cut_off_before_it_was_confirmed_is_not_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path)
    with wal_of(path).open("ab") as file:
        file.write(random.Random(6).randbytes(5000))
    assert lacks(path, caplog) == []


def test_an_old_copy_a_copy_without_its_log_and_a_deleted_file_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path)
    old = tmp_path / "old.db"
    fill(old, [b"old"] * 39)
    wal_of(path).unlink()
    assert lacks(path, caplog) == ["ERROR"]
    path.write_bytes(old.read_bytes())
    assert lacks(path, caplog) == ["ERROR"]
    path.unlink()
    assert lacks(path, caplog) == ["ERROR"]
    assert lacks(path, caplog) == ["ERROR"]  # until the store has confirmed another block
    fill(path, [b"new"])
    assert lacks(path, caplog) == []


@pytest.mark.parametrize(("sync", "levels"), [("full", ["ERROR"]), ("normal", ["WARNING"])])
def test_after_a_loss_of_power_the_newest_blocks_may_be_missing_without_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, sync: str, levels: list[str]
) -> None:
    path = killed(tmp_path, sync)
    wal_of(path).write_bytes(wal_of(path).read_bytes()[:-9000])
    (tmp_path / "boot").write_text("another-boot\n")
    monkeypatch.setattr(confirmed_note, "BOOT_ID", tmp_path / "boot")
    assert lacks(path, caplog, sync) == levels


@pytest.mark.parametrize("content", [b"", b"7", b"x full boot\n", b"\xff" * 99, b"9" * 5000, bytes(60)])
def test_a_note_that_is_not_whole_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = killed(tmp_path)
    note_of(path).write_bytes(content)
    assert lacks(path, caplog) == []


def test_blocks_that_were_forgotten_are_not_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SqliteStore(tmp_path / "store.db")
    loop, _ = opened(store)
    for _ in range(9):
        store.commit(b"block")
    loop.wait_for(9)
    store.forget_before(store.position)
    while store.size:
        loop.step()
    assert lacks(copy(store.path, tmp_path / "empty"), caplog) == []
    store.commit(b"tenth")
    store.forget_before(store.position)
    store.commit(b"eleventh")
    store.close()
    assert lacks(store.path, caplog) == []


# ---- what a commit is worth ----


@pytest.mark.parametrize(("sync", "level"), [("full", 2), ("normal", 1)])
def test_sqlite_syncs_as_it_was_asked_to(tmp_path: Path, sync: str, level: int) -> None:
    """No process can be killed so that a missing fsync shows: SQLite's own word has to do (FULL: each transaction)."""
    store = SqliteStore(tmp_path / "store.db", sync=sync)
    assert list(store.open()) == []
    found = [store._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
    store.close()
    assert found == [level, "wal"]


# ---- a process that is killed ----

WRITER = """
import sys, queue
from pathlib import Path
from flockmq.broker.storage.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]), sync=sys.argv[2])
held = sum(1 for _ in store.open())
calls = queue.SimpleQueue()
def confirm(blocks):
    global held
    held += blocks
    print(held, flush=True)
store.start(confirm, lambda function, *arguments: calls.put((function, arguments)))
written = held
while True:
    while written < held + 40:
        store.commit(written.to_bytes(4, "big") * (1 + written % 500))
        written += 1
    function, arguments = calls.get()
    function(*arguments)
"""


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_kill_in_the_middle_of_commits_leaves_all_confirmed_blocks(tmp_path: Path, sync: str) -> None:
    path = tmp_path / "store.db"
    rng = random.Random(5)
    for _ in range(4):
        confirmed = 0
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), sync], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            lines = rng.randrange(1, 60)
            for _ in range(lines):
                confirmed = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split("\n")
        confirmed = max([confirmed, *(int(line) for line in rest[:-1])])
        store = SqliteStore(path)
        found = list(store.open())
        store.close()
        assert len(found) >= confirmed > 0
        assert found == [number.to_bytes(4, "big") * (1 + number % 500) for number in range(len(found))]


# ---- copies ----


class Copied:
    """The end of a copy."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.errors: list[Exception | None] = []

    def wait(self) -> Exception | None:
        while not self.errors:
            self._loop.step()
        return self.errors[0]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy has many parts."""
    monkeypatch.setattr(sqlite_file, "COPIED_PAGES", 1)


def content(path: Path) -> list[bytes]:
    store = SqliteStore(path)
    try:
        return list(store.open())
    finally:
        store.close()


@pytest.mark.usefixtures("small_parts")
def test_a_copy_has_the_blocks_that_are_stored_meanwhile(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path)
    loop, blocks = opened(store)
    copied = Copied(loop)
    store.copy(tmp_path / "copy.db", copied.errors.append)
    while not copied.errors:
        blocks.append(len(blocks).to_bytes(4, "big") * 300)
        store.commit(blocks[-1])
        while loop.confirmed < len(blocks) - 40 and not copied.errors:
            loop.step()
    assert copied.errors == [None]
    count = len(blocks)
    store.forget_before(5)  # the copy is another file
    store.commit(b"later")
    store.close()
    found = content(tmp_path / "copy.db")
    assert found == blocks[: len(found)]
    assert 40 < len(found) <= count
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    assert content(path) == [*blocks[4:], b"later"]


@pytest.mark.parametrize("there", ["store.db", "missing/copy.db"])
def test_a_copy_that_can_not_be_written_leaves_the_store_as_it_is(path: Path, there: str) -> None:
    store = SqliteStore(path)
    loop, blocks = opened(store)
    copied = Copied(loop)
    store.copy(path.parent / there, copied.errors.append)
    assert isinstance(copied.wait(), OSError)
    store.commit(b"later")
    loop.wait_for(1)
    store.close()
    assert store.failure is None
    assert content(path) == [*blocks, b"later"]


@pytest.mark.usefixtures("small_parts")
def test_a_store_that_is_closed_ends_its_copies(path: Path, tmp_path: Path) -> None:
    fill(path, some_blocks(400, seed=2))
    store = SqliteStore(path)
    loop, blocks = opened(store)
    first, second = Copied(loop), Copied(loop)
    store.copy(tmp_path / "1.db", first.errors.append)
    store.copy(tmp_path / "2.db", second.errors.append)
    store.commit(b"later")
    store.close()
    assert [str(copied.wait()) for copied in (first, second)] == ["the node stops"] * 2
    assert store.failure is None
    assert content(path) == [*blocks, b"later"]


@pytest.mark.usefixtures("small_parts")
def test_a_store_that_fails_during_a_copy_has_failed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(path)
    opened(store)
    failing = threading.Event()

    def insert(*arguments: object) -> None:
        failing.set()
        raise sqlite3.DatabaseError("this page is damaged")

    monkeypatch.setattr(sqlite_file, "insert", insert)
    store.copy(tmp_path / "copy.db", lambda error: None)
    store.commit(b"x")
    assert failing.wait(DEADLINE)
    store.close()
    assert store.failure is not None and "this page is damaged" in str(store.failure)
