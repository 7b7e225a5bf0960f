"""Owns: the fuzz target of WebSocket's frames. `python tests/fuzz/fuzz_websocket.py --seconds 60`, with atheris.

Every input is bytes that a client sends after the handshake, whole and cut into pieces. The plain model has to agree on
their content; its branches guide the fuzzer, which cannot see into C. Then a client's end reads what a server's end
makes of the same bytes as payload. With `FLOCKMQ_SANITIZE=address` in the build, a read beyond the bytes ends the run.
The first byte of an input chooses the size of the pieces. Options: fuzzing.py.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.fuzzing import fuzz

PIECES = (1, 2, 3, 7, 14, 15, 64, 1 << 20)


def make_target() -> Callable[[bytes], None]:
    """The function under fuzz. Imports happen here, so that they can be instrumented."""
    frames = importlib.import_module("flockmq._speedups.net.websocket")
    model = importlib.import_module("tests.model.websocket")

    def receive(data: bytes, size: int) -> tuple[bytes, tuple[bytes, ...], int]:
        end = frames.WebSocket()
        payload, answers = b"", []
        for n in range(0, len(data), size):
            payload += end.receive(data[n : n + size])
            if answer := end.send(b""):
                answers.append(answer)
        return payload, tuple(answers), end.code

    def target(data: bytes) -> None:
        size = PIECES[data[0] % len(PIECES)] if data else 1
        data = data[1:]
        expected = model.take(data)
        assert receive(data, 1) == tuple(expected), data
        payload, answers, code = receive(data, size)
        assert (payload, code) == (expected.payload, expected.code), (data, size)
        assert answers[-1:] == expected.answers[-1:], (data, size)
        sender, receiver = frames.WebSocket(), frames.WebSocket(client=True)
        sent = b"".join(sender.send(data[n : n + size]) for n in range(0, len(data), size))
        assert b"".join(receiver.receive(sent[n : n + 5]) for n in range(0, len(sent), 5)) == data

    return target


def seeds() -> list[bytes]:
    """Frames of each kind, and the cases of the unit tests."""
    model = importlib.import_module("tests.model.websocket")
    cases = importlib.import_module("tests.unit.speedups.test_websocket_frames")
    kinds = [model.frame(opcode, bytes(size)) for opcode in range(16) for size in (0, 5, 125, 126)]
    kinds += [data for data, _ in cases.CASES.values()]
    kinds.append(model.frame(model.BINARY, bytes(70_000)))
    return [bytes((n,)) + data for n, data in enumerate(kinds)]


if __name__ == "__main__":
    sys.exit(fuzz("Fuzz the frames of WebSocket.", make_target, seeds, 4096))
