"""Commands as processes: the modules that they load, how they end, and that they read other programs' output."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flockmq.broker.auth.password_file import read_users
from tests.harness.deadline import DEADLINE


def test_help_and_mistakes_load_nothing_heavy() -> None:
    heavy = {
        "asyncio",
        "uvloop",
        "sqlite3",
        "importlib.metadata",
        "flockmq.broker.node",
        "flockmq.broker.client.client",
        "flockmq._speedups.codec.packets",
    }
    for arguments in (["--help"], ["serve", "--help"], ["check-config"], ["--listen", "x"]):
        code = f"import sys; from flockmq.broker.cli import main; main({arguments!r})\n"
        code += "print(sorted(sys.modules), file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        loaded = set(eval(done.stderr.splitlines()[-1]))
        assert not heavy & loaded, arguments


def test_output_into_a_closed_pipe_is_quiet() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "flockmq.broker.cli", "sample-config"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 141


def test_a_file_of_mosquittos_is_read(tmp_path: Path) -> None:
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("not installed: mosquitto_passwd")
    path = tmp_path / "passwords"
    path.touch()
    for name, scheme in (("ada", "sha512-pbkdf2"), ("bob", "sha512")):
        command = ["mosquitto_passwd", "-H", scheme, "-b", path, name, f"of {name}"]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE)
    users = read_users(str(path))
    assert {name: stored.matches(f"of {name}".encode()) for name, stored in users.items()} == {"ada": True, "bob": True}
