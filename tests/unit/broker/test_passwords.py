"""Hashes of passwords, the file that holds them, and `flockmq passwd`."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flockmq.broker.auth.password_file import read_users, set_user
from flockmq.broker.auth.passwords import StoredHash, parse_hash
from flockmq.broker.cli import main
from flockmq.broker.errors import ConfigError

# The lines of mosquitto_passwd 2.0.11 for the passwords "secret" (-H sha512-pbkdf2) and "s2" (-H sha512).
PBKDF2 = (
    "$7$101$vIQaRBINjufdcuRx$6hqkAUMnZRjnh3qUiaFzNt/bTx8p6spHjaHRQDkXhPlRantl2q/x3o1aYXgW3a4FAMZAWrowdvsxoNgIGGrXGg=="
)
SHA512 = "$6$63GiBw4i16b/1aLZ$3ZvR0qhAadQDIQ+E56BQovoaZocoXbKs1dV3uLkLHuZDgxrVEiRTwjXeuCcp0nUQ2NS+dR90SPoXgwbjNAKKWQ=="
ARGON2 = "$argon2id$v=19$m=19456,t=2,p=1$wcZ+Vt2RGtvRgvAsS4DXtQ$H7fSsI0BMXmhpNbwW0kXXKXdoNYgyeGgAhzP4EhEqmE"

# Of the tests of mosquitto-go-auth, and the test vectors of bcrypt's first implementation.
GO_AUTH = (
    "PBKDF2$sha512$100000$2WQHK5rjNN+oOT+TZAsWAw==$"
    "TDf4Y6J+9BdnjucFQ0ZUWlTwzncTjOOeE00W4Qm8lfPQyPCZACCjgfdK353jdGFwJjAf6vPAYaba9+z4GWK7Gg=="
)
GO_AUTH_SHA256 = "PBKDF2$sha256$1$c2FsdA==$VawEblbjCJ/sFpHCJUS2BflBhSFt3gRl5oudV8INrLw="  # RFC 7914, section 11
CHIRPSTACK = GO_AUTH.replace("PBKDF2$sha512$100000$", "$pbkdf2-sha512$i=100000,l=64$").replace("==", "")
BCRYPT = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"


@pytest.mark.parametrize(
    ("text", "password"),
    [
        (PBKDF2, b"secret"),
        (SHA512, b"s2"),
        (ARGON2, b"argon"),
        (GO_AUTH, b"test1"),
        (GO_AUTH_SHA256, b"passwd"),
        (CHIRPSTACK, b"test1"),
        (BCRYPT, b"U*U"),
        (BCRYPT.replace("$2a$", "$2y$"), b"U*U"),
    ],
)
def test_a_hash_knows_its_password(text: str, password: bytes) -> None:
    stored = parse_hash(text)
    assert stored.matches(password)
    for wrong in (b"", password + b"x", password[:-1], text.encode()):
        assert not stored.matches(wrong)
    assert not stored.dummy().matches(password)
    assert stored.dummy().scheme == stored.scheme and stored.dummy().iterations == stored.iterations


@pytest.mark.parametrize("password", [b"x" * 73, b"x" * 65_535, b"U*U\0", b"\0", b"\xff\xfe"])
def test_bcrypt_takes_any_password(password: bytes) -> None:
    """Longer ones than 72 bytes match nothing: bcrypt would compare their beginning. A NUL is a byte as any other."""
    bcrypt = pytest.importorskip("bcrypt")
    assert not parse_hash(BCRYPT).matches(password)
    short = parse_hash(bcrypt.hashpw(password[:72], bcrypt.gensalt(4)).decode())
    assert short.matches(password[:72]) and short.matches(password) == (len(password) <= 72)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "$",
        "$6$",
        "$7$",
        "$6$$",
        "$7$101$$",
        "$8$a$b",
        PBKDF2.replace("$101$", "$0$"),
        ARGON2[:-9] + "!",
        ARGON2[:40],
        "$argon2id$",
        PBKDF2.replace("$101$", "$99999999999$"),
        PBKDF2[:60],
        SHA512[:-9],
        SHA512 + "!",
        "$argon2i$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aGFzaA",
        ARGON2.replace("m=19456", "m=99999999"),
        "plain:text",
        GO_AUTH.replace("sha512", "md5"),
        GO_AUTH.replace("100000", "99999999999"),
        GO_AUTH.replace("100000", "-1"),
        GO_AUTH.replace("100000", "\u0661"),
        GO_AUTH[:-80],
        GO_AUTH[: GO_AUTH.index("TDf4")],
        GO_AUTH_SHA256.replace("c2FsdA==", ""),
        GO_AUTH_SHA256[: GO_AUTH_SHA256.index("VawEblbj") + 12],  # nine bytes of hash
        CHIRPSTACK.replace("i=100000", "i=x"),
        CHIRPSTACK.replace(",l=64", ",x=64"),
        BCRYPT[:-1],
        BCRYPT.replace("$05$", "$03$"),
        BCRYPT.replace("$05$", "$31$"),
        BCRYPT.replace("$2a$", "$2x$"),
    ],
)
def test_cve_2018_12551_what_is_no_hash_is_no_user(text: str, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"bob:{SHA512}\nada:{text}\n")
    users, faults = read(path)
    assert list(users) == ["bob"]
    assert len(faults) == 1 and faults[0].startswith(f"{path}:2: user 'ada' is not served: ")
    assert not text or text not in faults[0], "it may be a password"
    path.write_text(f"ada:{SHA512}\nbob:{SHA512}\nada:{text}\n")
    assert list(read(path)[0]) == ["bob"], "the earlier line does not count"


@pytest.mark.parametrize(
    "line",
    [b"ada", f":{SHA512}".encode(), f"a\x01b:{SHA512}".encode(), b"\0", b"a\xe9:" + SHA512.encode(), b"ada:"],
)
def test_cve_2018_12551_a_bad_line_is_no_user(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_bytes(b"bob:%b\n%b\neve:%b\n" % (SHA512.encode(), line, SHA512.encode()))
    users, faults = read(path)
    assert list(users) == ["bob", "eve"]
    assert len(faults) == 1 and faults[0].startswith(f"{path}:2: ")
    path.write_bytes(line + b"\n")
    with pytest.raises(ConfigError, match=r"passwords:1: .*; the file has no other user"):
        read(path)


def test_lines_that_mosquitto_takes_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    lines = [
        "\ufeff# by an editor",
        "",
        " \t",
        "  # b\xe9b:x",
        f"ada:{SHA512} \t",
        f" bob :{SHA512}\r",
        f"ada:{PBKDF2}",
    ]
    path.write_bytes("\n".join(lines).encode("utf-8").replace("\xe9".encode(), b"\xe9"))
    users, faults = read(path)
    assert {name: stored.text for name, stored in users.items()} == {"ada": PBKDF2, "bob": SHA512}
    assert faults == [f"{path}:7: user 'ada' has a line before: this one counts"]


def read(path: Path) -> tuple[dict[str, StoredHash], list[str]]:
    """The users of a file, and the faults of its lines."""
    faults: list[str] = []
    return read_users(str(path), lambda where, fault: faults.append(f"{where}: {fault}")), faults


def test_a_file_is_replaced_whole_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text("# old\n")
    path.chmod(0o644)
    before = path.stat().st_ino
    set_user(str(path), "ada", parse_hash(SHA512))
    assert path.stat().st_ino != before and path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["passwords"]
    with pytest.raises(ConfigError, match="can't be written"):
        set_user(str(tmp_path / "none" / "passwords"), "ada", parse_hash(SHA512))


class Input(io.TextIOWrapper):
    """Standard input that is no terminal."""

    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8")


Passwd = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def passwd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Passwd:
    """Runs the command: exit status, standard output, standard error."""

    def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", Input(stdin))
        status = main(["passwd", *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


def test_the_command(passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    assert passwd(path, "ada", stdin="first\n")[0] == 0
    assert passwd(path, "Charles Babbage", stdin="engine")[0] == 0
    assert passwd(path, "ada", stdin="pässword \n")[0] == 0
    assert passwd(path, "--list")[1] == "Charles Babbage\nada\n"
    users = read_users(str(path))
    assert users["ada"].scheme == "argon2id" and users["ada"].matches("pässword ".encode())
    assert passwd(path, "ada", "--delete")[0] == 0
    assert passwd(path, "--list")[1] == "Charles Babbage\n"


def test_the_command_keeps_the_lines_of_others(passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    head, tail = b"# M\xfcller's\n\neve:cut\r\nnonsense\n", f"bob:{SHA512} \n  # end".encode()
    path.write_bytes(head + f"ada:{SHA512}\n".encode() + tail)
    status, _, errors = passwd(path, "ada", stdin="new\n")
    assert status == 0
    assert [line.partition(" is ")[0] for line in errors.splitlines()] == [
        f"flockmq: warning: {path}:3: user 'eve'",
        f"flockmq: warning: {path}:4: the line",
    ]
    data = path.read_bytes()
    assert data.startswith(head + b"ada:$argon2id$") and data.endswith(b"\n" + tail + b"\n")
    assert passwd(path, "ada", "--delete")[0] == 0
    assert path.read_bytes() == head + tail + b"\n"
    assert passwd(path, "eve", stdin="new\n")[0] == 0
    assert path.read_bytes().count(b"eve:") == 1 and set(read(path)[0]) == {"bob", "eve"}


def test_the_command_touches_no_file_without_users(passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n")
    status, _, errors = passwd(path, "ada", stdin="x\n")
    assert status == 2 and "the file has no other user" in errors
    assert path.read_text() == "127.0.0.1 localhost\n"


def test_the_command_refuses_what_it_cannot_do(passwd: Passwd, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    for arguments, stdin, words in (
        ([path], "x\n", "a user is missing"),
        ([path, "a:b"], "x\n", "'a:b' can't be a user's name; no colons"),
        ([path, " a"], "x\n", "no space at an end"),
        ([path, "ada"], "\n", "a password has 1 to"),
        ([path, "ada", "--delete"], "", "has no user 'ada'"),
    ):
        status, _, errors = passwd(*arguments, stdin=stdin)
        assert status == 2 and words in errors and not path.exists()
