"""A forked process ends as an interpreter does: exit status, last words, exit handlers, threads that go on."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import nursery
from tests.harness.broker_process import environment
from tests.harness.deadline import DEADLINE

ENDS = {
    "pass": "",
    "raise SystemExit(3)": "",
    "raise SystemExit(-1)": "",
    "raise SystemExit('no')": "no",
    "raise ValueError('wrong')": "ValueError: wrong",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "import atexit; atexit.register(print, 'last')": "last",
    "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()": "late",
    "print('buffered', end='')": "buffered",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "",
}


@pytest.mark.parametrize("program", ENDS)
def test_a_fork_ends_as_an_interpreter(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    variables = environment() | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "program"]
    here = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=DEADLINE)
    forked = nursery.start(
        command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    output, errors = forked.communicate(timeout=DEADLINE)
    assert (forked.returncode, output) == (here.returncode, here.stdout)
    assert errors.splitlines()[-1:] == here.stderr.splitlines()[-1:]
    assert ENDS[program] in output + errors


def test_a_signal_ends_a_fork(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time; print('on', flush=True); time.sleep(60)")
    variables = environment() | {"PYTHONPATH": str(tmp_path)}
    forked = nursery.start(
        [sys.executable, "-m", "program"], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    )
    assert forked.stdout is not None
    assert forked.stdout.readline() == "on\n"
    forked.terminate()
    assert forked.wait(DEADLINE) == -signal.SIGTERM
    forked.stdout.close()
