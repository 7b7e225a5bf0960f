"""The end of an append-only file: whatever is cut off, whole commands and transactions stay, and nothing else."""

from pathlib import Path

import pytest

from flockmq.broker.append_only_file import Damaged, mend, whole_size


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


STEPS = [
    command(b"SELECT", b"0"),
    b"#TS:1795453536\r\n",
    command(b"MULTI") + command(b"SET", b"a", b"\r\n*1\r\n") + command(b"DEL", b"b") + command(b"EXEC"),
    command(b"set", b"", b"x" * 100),
    command(b"multi") + command(b"INCR", b"n") + command(b"exec"),
]


def test_every_cut() -> None:
    data = b"".join(STEPS)
    ends = [sum(map(len, STEPS[:count])) for count in range(len(STEPS) + 1)]
    for size in range(len(data) + 1):
        assert whole_size(data[:size]) == max(end for end in ends if end <= size)


def test_zeros_of_a_loss_of_power() -> None:
    data = b"".join(STEPS)
    assert whole_size(data + bytes(4096)) == len(data)


@pytest.mark.parametrize(
    "wrong",
    [
        b"!1\r\n$4\r\nPING\r\n",
        b"*x\r\n$4\r\nPING\r\n",
        b"*1\r\n$3\r\nPING\r\n",
        b"*1\r\n+PING\r\n",
        b"*-1\r\n",
        b"*" + b"1" * 40,
        bytes(4096) + STEPS[0],
    ],
)
def test_damage(wrong: bytes) -> None:
    with pytest.raises(Damaged):
        whole_size(STEPS[0] + wrong + STEPS[0])


def test_only_the_last_file_is_mended(tmp_path: Path) -> None:
    manifest = "file base.rdb seq 1 type b\nfile 1.aof seq 1 type i\nfile 2.aof seq 2 type i startoffset 0\n"
    (tmp_path / "appendonly.aof.manifest").write_text(manifest)
    (tmp_path / "base.rdb").write_bytes(b"REDIS")
    for name in ("1.aof", "2.aof"):
        (tmp_path / name).write_bytes(STEPS[0] + STEPS[2][:-3])
    mend(tmp_path)
    assert (tmp_path / "1.aof").read_bytes() == STEPS[0] + STEPS[2][:-3]
    assert (tmp_path / "2.aof").read_bytes() == STEPS[0]
    (tmp_path / "2.aof").write_bytes(b"")
    mend(tmp_path)
