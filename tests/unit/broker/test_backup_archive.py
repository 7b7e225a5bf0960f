"""The file of a backup: it is whole, or it is refused."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from flockmq.broker.backup.archive import NODE, STORE, SUMS, Archive, Head, Member, chunks, write
from flockmq.broker.errors import FlockError

HEAD = Head(NODE, "0.1.0", "n1")


def made(folder: Path) -> Path:
    """A backup with a member of each kind."""
    (folder / "store").write_bytes(bytes(range(256)) * 5000)
    (folder / "aligned").write_bytes(bytes(1024))
    members = [
        Member("flockmq.toml", b"listen = []\n"),
        Member(STORE, folder / "store"),
        Member("log/00000000000000000000.log", folder / "aligned"),
        Member("log/00000000000000001024.log", folder / "dropped"),
    ]
    write(folder / "b.tar", chunks(HEAD, members))
    return folder / "b.tar"


def test_members_are_as_they_were(tmp_path: Path) -> None:
    archive = Archive(made(tmp_path))
    assert archive.head == HEAD
    assert archive.names == ["flockmq.toml", STORE, "log/00000000000000000000.log"]
    archive.extract(STORE, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "store").read_bytes()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


def test_other_programs_read_it(tmp_path: Path) -> None:
    subprocess.run(["tar", "xf", made(tmp_path)], cwd=tmp_path, check=True)
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=tmp_path, check=True, capture_output=True)


def test_only_its_owner_may_read_it_and_nothing_is_replaced(tmp_path: Path) -> None:
    path = made(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    with pytest.raises(FlockError, match=r"b\.tar exists"):
        write(path, chunks(HEAD, []))
    assert path.read_bytes() == before


def test_a_backup_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FlockError, match="can't be written"):
        write(tmp_path / "b.tar", chunks(HEAD, [Member(STORE, tmp_path / "folder")]))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    data = made(tmp_path).read_bytes()
    end = len(data) - 1024  # two blocks of zeros end an archive, and may be missing
    path = tmp_path / "cut.tar"
    for size in [*range(0, end, 7919), *range(0, end, 512 * 97), end - 512, end - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(FlockError, match=r"damaged|no backup"):
            Archive(path)


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    data = bytearray(made(tmp_path).read_bytes())
    names = [data.find(name) for name in (b"backup.json", b"flockmq.db", b"SHA256SUMS")]
    path = tmp_path / "changed.tar"
    for place in [*names, 600, 512 * 4, 700_000, len(data) - 1500]:
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(FlockError, match=r"damaged|no backup"):
            Archive(path)


@pytest.mark.parametrize("content", [b"", b"no tar", bytes(10_240)])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FlockError, match=r"damaged|no backup"):
        Archive(tmp_path / "x")


def test_another_archive_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a"), io.BytesIO())
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    with pytest.raises(FlockError, match=r"folder is no file|no backup"):
        Archive(tmp_path / "x.tar")
    with pytest.raises(FlockError, match="can't be read: No such file"):
        Archive(tmp_path / "missing")


def test_a_later_form_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "b.tar", chunks(Head(NODE, "9.0", "n1", form=2), []))
    with pytest.raises(FlockError, match=r"has form 2, this version reads form 1; use FlockMQ 9\.0"):
        Archive(tmp_path / "b.tar")
