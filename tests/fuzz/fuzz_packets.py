"""Owns: the fuzz target of the codec. `python tests/fuzz/fuzz_packets.py --seconds 60`, in a venv with atheris.

Every input is decoded at levels 3, 4 and 5 and fed to a Decoder in pieces; only documented errors may escape. The plain
model decodes it too and has to agree: its Python branches are also what guides the fuzzer, which cannot see into C.
With `FLOCKMQ_SANITIZE=address` in the build, a read beyond the bytes ends the run as well.

Options: see fuzzing.py.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.fuzzing import fuzz


def make_target() -> Callable[[bytes], None]:
    """The function under fuzz. Imports happen here, so that they can be instrumented."""
    decode, encode, errors = (
        importlib.import_module(f"flockmq._speedups.codec.{name}") for name in ("decode", "encode", "errors")
    )
    model = importlib.import_module("tests.model.codec")

    def as_model(packet: object) -> dict[str, object]:
        fields: tuple[str, ...] = packet.fields  # type: ignore[attr-defined]
        return {"type": type(packet).__name__} | {name: getattr(packet, name) for name in fields}

    def check_decode(data: bytes, level: int) -> None:
        try:
            expected = model.decode(data, level)
        except model.Refused:
            expected = None
        try:
            packet = decode.decode(data, level)
        except errors.MalformedPacket as error:
            assert expected is None, (data, level, error.reason)
            return
        assert as_model(packet) == expected, (data, level)
        level = getattr(packet, "protocol_level", level)
        assert decode.decode(encode.encode(packet, level), level) == packet, (data, level)

    def feed(data: bytes, level: int, size: int) -> tuple[list[object], str | None]:
        """The packets of a stream cut into pieces of `size` bytes, and the error that ended it."""
        decoder = decode.Decoder(level, 100_000)
        found: list[object] = []
        for n in range(0, len(data), size):
            try:
                found += decoder.feed(data[n : n + size])
            except errors.MalformedPacket as error:
                return found + list(error.packets), error.reason
        return found, None

    def target(data: bytes) -> None:
        for level in (3, 4, 5):
            check_decode(data, level)
            # A length that holds lets changes of the body get past the fixed header.
            if 2 < len(data) < 130:
                check_decode(data[:1] + bytes([len(data) - 2]) + data[2:], level)
            whole = feed(data, level, len(data) + 1)
            for size in (1, 3, 16):
                assert feed(data, level, size) == whole, (data, level, size)

    return target


def seeds() -> list[bytes]:
    cases = importlib.import_module("tests.cases.packets")
    return [case.data for case in cases.CASES]


if __name__ == "__main__":
    sys.exit(fuzz("Fuzz the packet codec.", make_target, seeds, 512))
